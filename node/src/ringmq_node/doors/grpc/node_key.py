"""How nodes prove to each other that they are nodes of this cluster.

Every call of a node carries its *token* as the metadata `ringmq-node`: its name, and a code over it
under the cluster's secret (`identity.cluster_secret`). The port checks it once for each call or
stream, before any handler sees that. A call with a token that isn't right is refused; a call
without one is a client's, who may neither use what only nodes use nor say that it was relayed.

The token keeps clients from passing for nodes. It doesn't hide from somebody who reads the network.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ringmq_node.doors.grpc.service import NODE_KEY, RELAYED_KEY, failure, is_node
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import Accept, CallHandler, CallStream, Metadata, WireCall, streaming

# Nobody but nodes calls these.
NODES_ONLY = "/ringmq.v1.Ring/"


def node_of(call: WireCall) -> str:
    """The name of the node that makes this call, for itself or for a client; empty: none does."""
    for key, value in call.metadata:
        if key == NODE_KEY and isinstance(value, str):
            return bytes.fromhex(value.partition(".")[0]).decode()
    return ""


class NodeKey:
    """Of one node of the cluster that has this secret."""

    def __init__(self, secret: bytes, node: str) -> None:
        self._secret = secret
        #: What this node says with each call to another one.
        self.metadata: Metadata = ((NODE_KEY, self._token(node.encode().hex())),)

    def _token(self, name: str) -> str:
        """`name` is in hexadecimal: metadata is ASCII."""
        return f"{name}.{hmac.digest(self._secret, b'node ' + name.encode(), 'sha256').hex()}"

    def refusal(self, metadata: Metadata, path: str) -> BrokerError | None:
        """Why a call may not be made; None: it may."""
        tokens = [value for key, value in metadata if key == NODE_KEY]
        for token in tokens:
            right = self._token(token.partition(".")[0]) if isinstance(token, str) else ""
            if not isinstance(token, str) or not hmac.compare_digest(
                token.encode(), right.encode()
            ):
                return _refusal("its token was not made with this cluster's secret")
        if not tokens and path.startswith(NODES_ONLY):
            return _refusal(f"{path} is for nodes")
        if not tokens and any(key == RELAYED_KEY for key, _ in metadata):
            return _refusal("only a node relays calls")
        return None

    def guard(self, routes: Mapping[str, Accept], unacknowledged_s: float) -> dict[str, Accept]:
        """These routes, for those who may call them. A node's connection is given up once nothing
        was acknowledged on it for `unacknowledged_s`, here as on its other end: what is sent may
        come to a standstill in one direction alone."""
        return {
            path: self._guarded(path, accept, unacknowledged_s) for path, accept in routes.items()
        }

    def _guarded(self, path: str, accept: Accept, unacknowledged_s: float) -> Accept:
        def begin(call: WireCall) -> CallHandler:
            error = self.refusal(call.metadata, path)
            if error is not None:
                return _refuse(error)(call)
            if is_node(call):
                call.give_up_after(unacknowledged_s)
            return accept(call)

        return begin


def _refusal(why: str) -> BrokerError:
    return BrokerError(
        Reason.ACCESS_REFUSED, f"the caller is no node of this cluster: {why}", field=NODE_KEY
    )


def _refuse(error: BrokerError) -> Accept:
    async def refuse(_: CallStream) -> None:
        raise failure(error)

    return streaming(refuse)
