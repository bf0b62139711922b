# A node of a cluster. docker-compose.yaml runs five of them.
FROM python:3.13-slim

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir . && useradd --create-home moldau && install -d -o moldau /data
COPY docker-entrypoint.sh /usr/local/bin/

USER moldau
VOLUME /data
# The HTTP API and the Kafka protocol.
EXPOSE 80 9092
ENTRYPOINT ["docker-entrypoint.sh"]
