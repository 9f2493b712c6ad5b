"""What every command needs: the settings. An error in them names the setting."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipelines.errors import BadUsage
from pipelines.logs import LogFormat, configure_command

if TYPE_CHECKING:
    from pipelines.settings import Settings


def load_settings() -> Settings:
    """The settings of this process. Sets up its log by them. Raises BadUsage that names each wrong setting."""
    settings = _settings()
    configure_command(settings.log_format)
    return settings


def log_format() -> LogFormat:
    """The format of this process's log. If the settings are wrong, only the environment counts."""
    try:
        return _settings().log_format
    except BadUsage:
        return "json" if os.environ.get("SWITCHYARD_LOG_FORMAT") == "json" else "text"


def _settings() -> Settings:
    import tomllib

    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from pipelines.settings import get_settings

    try:
        return get_settings()
    except ValidationError as error:
        found = [
            f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise BadUsage(
            "wrong settings: " + "; ".join(found),
            "set each as SWITCHYARD_<NAME> in the environment, or in switchyard.toml",
        ) from error
    except SettingsError as error:
        # an environment variable should be JSON; the exception's cause says what is wrong
        reason = str(error).replace("EnvSettingsSource", "the environment").replace('"', "")
        raise BadUsage(
            f"wrong settings: {reason}: {error.__cause__}",
            """write JSON, for example SWITCHYARD_KAFKA='{"security.protocol": "SSL"}'""",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise BadUsage(f"switchyard.toml can't be read: {error}", "correct that line of the file") from error
