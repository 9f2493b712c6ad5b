"""Launchers: how a driver is started, as a process of this host."""
