"""Where the other nodes are: the addresses that brokers register, by the listener that nodes use among themselves."""

from moldau.metadata.image import ClusterDelta, ClusterImage
from moldau.peers.peers import Peers


class PeerAddresses:
    """Hears of metadata as soon as it is committed. Where voters are, the quorum says: who is no broker any more may
    still be one."""

    def __init__(self, peers: Peers, listener: str) -> None:
        self._peers = peers
        self._listener = listener

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        for broker_id in delta.brokers_changed:
            broker = image.brokers.get(broker_id)
            if broker is None:
                self._peers.forget(broker_id)
                continue
            for endpoint in broker.endpoints:
                if endpoint.listener == self._listener:
                    self._peers.know_broker(broker_id, endpoint.host, endpoint.port)
                    break
