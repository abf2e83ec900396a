"""The two sides of a kept stream: the keeper, and the speaker that knows its messages.

A speaker translates between a stream's wire messages and the events of a publisher or a
consumer. It knows nothing of connections, time-outs and repeats, which are the keeper's; and the
keeper knows nothing of batches and acks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ringmq.errors import RingMQError
from ringmq.v1.broker_pb2 import ConsumeRequest, ConsumeResponse, PublishRequest, PublishResponse
from ringmq_wire import WireMessage

Request = TypeVar("Request", PublishRequest, ConsumeRequest)
Response = TypeVar("Response", PublishResponse, ConsumeResponse)


class Speaker(ABC, Generic[Request, Response]):
    """All of it is called on the loop, none of it blocks."""

    #: The method's path, and the class of its responses.
    path: str
    response: type[Response]

    @abstractmethod
    def open_request(self) -> Request:
        """The first request of a stream."""

    @abstractmethod
    def opened(self, response: Response) -> int:
        """The first response has come; returns its `heartbeat_ms`."""

    @abstractmethod
    def received(self, response: Response) -> bool:
        """Another response (no heartbeat, no Moved) has come; returns whether that is progress.

        Raises a `RingMQError` to end the stream."""

    @abstractmethod
    def next_request(self) -> WireMessage | None:
        """The request to write now, encoded, if there is any."""

    @abstractmethod
    def heartbeat(self) -> Request:
        """The request to write when there has been no other for a while."""

    @abstractmethod
    def moved(self) -> None:
        """The node will end the stream: nothing new is to go out on it."""

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Whether the node still has to answer something: a confirm, or a settle."""

    @property
    @abstractmethod
    def finishing(self) -> bool:
        """Whether to half-close once `next_request` has nothing left."""

    @property
    def owes_word(self) -> bool:
        """Whether the keeper, though it was stopped, is to open a stream once more: nodes have to
        hear something that they haven't."""
        return False

    @abstractmethod
    def ended(self, trouble: RingMQError | None) -> float:
        """The stream is over, or could not be opened; returns a pause (s) before the next one."""

    @abstractmethod
    def refused(self, error: RingMQError) -> None:
        """No node will have this stream; the keeper waits for `wake` or `stop`."""
