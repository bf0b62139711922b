#!/bin/sh
# Runs the node of a container. Arguments are flags of `moldau serve`. The environment:
#   BROKER_ID    id of this node
#   BROKERS      all brokers as id@host:port, comma-separated; the port is the one of the HTTP API
#   KAFKA_PORT   port of the Kafka protocol on every broker (9092 by default)
#   DATA_DIR     directory of the data (/data by default)
# MAX_SEGMENT_SIZE_BYTES and the variables MOLDAU_* are read by the node itself.
set -eu

fail() {
    echo "docker-entrypoint.sh: $1" >&2
    exit 2
}

: "${BROKER_ID:?is the id of this node, for example 1}"
: "${BROKERS:?lists all brokers, for example 1@broker-1:80,2@broker-2:80,3@broker-3:80}"
kafka_port=${KAFKA_PORT:-9092}

voters= host= http_port=
for broker in $(echo "$BROKERS" | tr ',' ' '); do
    case $broker in
        ?*@?*:?*) ;;
        *) fail "BROKERS: $broker is not id@host:port" ;;
    esac
    id=${broker%%@*} address=${broker#*@}
    voters=${voters:+$voters,}$id@${address%:*}:$kafka_port
    if [ "$id" = "$BROKER_ID" ]; then
        host=${address%:*} http_port=${address##*:}
    fi
done
[ -n "$host" ] || fail "BROKERS does not list this node, broker $BROKER_ID"

exec moldau serve --node-id "$BROKER_ID" --controller-quorum-voters "$voters" --data-dir "${DATA_DIR:-/data}" \
    --listen "0.0.0.0:$kafka_port" --advertised-listeners "$host:$kafka_port" \
    --http-host 0.0.0.0 --http-port "$http_port" "$@"
