"""The error of a job that its user can mend."""


class JobError(RuntimeError):
    """A job can't do what it was asked for. The message is the user's."""
