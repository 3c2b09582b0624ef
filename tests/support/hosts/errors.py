"""The error of this library."""


class HostsError(Exception):
    """The machine cannot make hosts, or a program on a host did not do what was expected of it in time."""
