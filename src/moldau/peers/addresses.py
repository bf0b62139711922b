"""Where the other nodes are: the addresses that brokers register, by the listener that nodes use among themselves."""

from moldau.metadata.image import MetadataDelta, MetadataImage
from moldau.peers.client import PeerClient


class PeerAddressPublisher:
    """Hears of metadata as soon as it is committed. Where voters are, the quorum says: who is no broker any more may
    still be one."""

    def __init__(self, peers: PeerClient, listener: str) -> None:
        self._peers = peers
        self._listener = listener

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for broker_id in delta.brokers_changed:
            broker = image.brokers.get(broker_id)
            if broker is None:
                self._peers.remove_broker(broker_id)
                continue
            for endpoint in broker.endpoints:
                if endpoint.listener == self._listener:
                    self._peers.update_broker_endpoint(broker_id, endpoint.host, endpoint.port)
                    break
