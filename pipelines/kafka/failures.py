"""What Kafka's errors mean, and what a person can do about them."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from pipelines.errors import LoginRefused, Refused, SwitchyardError, Unavailable
from pipelines.settings import Settings

# group id of consumers without a group: librdkafka asks for its coordinator all the same
NO_GROUP = "switchyard-unused"
# no answer, or no usable connection: the problem is the way to the cluster
NOT_REACHED = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
)
# answers that Kafka's protocol calls retriable; librdkafka's own flag says so only for transaction calls
_PASSING = (
    KafkaError.INVALID_MSG,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.NOT_CONTROLLER,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LISTENER_NOT_FOUND,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_ID,
)
# missing ACL -> its resource, and the operations that Switchyard needs on it
_ACLS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", "Read, Write, Describe, Create and Delete"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "Read, Describe and Delete"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "Write and Describe"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("cluster", "Describe, Create and IdempotentWrite"),
}
# where a login is set
LOGIN_TABLE = "the kafka table of switchyard.toml, or in SWITCHYARD_KAFKA"
_LOGIN = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)


class TopicGone(Unavailable):
    """There is no such topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic}", fix="run `switchyard status`, then try again")


def is_login(error: KafkaError) -> bool:
    """Whether the cluster or the client refuses the user, the password or a certificate."""
    return error.code() in _LOGIN


def unreached(error: KafkaError) -> bool:
    """Whether the cluster didn't get the request, or its answer was lost. The client keeps trying to connect."""
    return error.code() in NOT_REACHED


def forbidden(error: KafkaError) -> bool:
    """Whether an ACL is missing."""
    return error.code() in _ACLS


def passes(error: KafkaError) -> bool:
    """Whether the cluster may accept the same request a little later."""
    return bool(error.retriable()) or error.code() in _PASSING


def failure(
    settings: Settings,
    error: KafkaError,
    *,
    topic: str | None = None,
    group: str = NO_GROUP,
    transactional_id: str | None = None,
) -> SwitchyardError:
    """`error` as an error for a person. `topic`, `group`, `transactional_id`: what was asked for, where known.

    Unavailable if the cluster isn't reached or a retry may help. Refused, with the missing ACL, if an ACL is missing.
    Otherwise SwitchyardError with the broker's own words.
    """
    if error.code() in NOT_REACHED or "security.protocol" in error.str():
        return unavailable(settings, error)
    if forbidden(error):
        kind, operations = _ACLS[error.code()]
        name = {"topic": topic, "group": group, "transactional id": transactional_id}.get(kind)
        resource = f"the {kind}" if name is None else f"{kind} {name}"
        return Refused(
            f"Kafka refuses: {error.str()}",
            fix=f"ask for the ACL on {resource} ({operations}), then try again; `switchyard acls` prints all that a role needs",
        )
    if passes(error):
        return Unavailable(
            f"Kafka refuses for now: {error.str()}",
            fix="try again; if it keeps failing, look at the brokers and their logs",
        )
    # the client's own errors; drivers and followers wait until they pass
    if error.code() < 0:
        return Unavailable(f"the Kafka client fails: {error.str()}", fix="run `switchyard status`, then try again")
    return SwitchyardError(
        f"Kafka refuses: {error.str()}",
        fix="a retry alone will not help: look at the limits of the cluster and the topic",
    )


def unavailable(settings: Settings, error: KafkaError | None) -> Unavailable:
    """Why the cluster at `settings.bootstrap` can't be reached. `error` None: it didn't answer in time."""
    where, table = settings.bootstrap, settings.kafka_properties
    if error is not None and error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        user = f" of {table['sasl.username']}" if "sasl.username" in table else ""
        return LoginRefused(
            f"the Kafka cluster at {where} refuses the login{user}: {error.str()}",
            fix=f"check sasl.mechanism, sasl.username and sasl.password in {LOGIN_TABLE}",
        )
    if error is not None and error.code() == KafkaError._SSL:
        return LoginRefused(
            f"no TLS connection to the Kafka cluster at {where}: {error.str()}", fix=_tls_fix(error.str())
        )
    # all brokers down, but no connection failed: each was accepted, then dropped at the first request
    if error is not None and (error.code() == KafkaError._ALL_BROKERS_DOWN or "security.protocol" in error.str()):
        now = table.get("security.protocol", "plaintext")
        return Unavailable(
            f"the Kafka cluster at {where} accepts connections and drops them: it is starting or stopping, or it expects a login "
            f"or TLS; security.protocol is {now}",
            fix=f"try again; if that does not help, check security.protocol and the login in {LOGIN_TABLE}",
        )
    fix = "start it with `switchyard up`" if settings.embedded else "check SWITCHYARD_BOOTSTRAP_SERVERS and the network"
    if not settings.embedded and "security.protocol" in table:
        fix += f", and whether it speaks {table['security.protocol']}"
    # librdkafka says again which address it tried, and for how long
    reason = re.sub(r"^\S+: Connect to \S+ failed: | \(after \d+ms in state \w+\)", "", error.str()) if error else ""
    return Unavailable(f"no Kafka broker answers at {where}" + (f": {reason}" if reason else ""), fix=fix)


def _tls_fix(said: str) -> str:
    """What to do about a TLS error, as far as OpenSSL's text tells."""
    if "expired" in said:
        return "the certificate has expired: renew the broker's or the client's certificate, and check this machine's clock"
    if "verif" in said or "unknown ca" in said:
        return (
            f"check ssl.ca.location in {LOGIN_TABLE}: it must name the CA that signed the brokers' certificates. The certificates "
            "must not have expired, and must contain the host name that bootstrap_servers uses"
        )
    return f"check security.protocol and ssl.ca.location in {LOGIN_TABLE}"
