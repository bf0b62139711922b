package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Runs transactions one after the other with a new producer, and returns the offsets of each transaction's records. */
final class Transactions {
    private Transactions() {
    }

    static Object run(JsonNode command) throws Exception {
        Properties settings = Values.settings(command.get("settings"));
        List<Object> found = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (JsonNode transaction : command.get("transactions")) {
                found.add(run(producer, transaction));
            }
        }
        return found;
    }

    private static List<Long> run(KafkaProducer<byte[], byte[]> producer, JsonNode transaction) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        producer.beginTransaction();
        for (JsonNode each : transaction.get("records")) {
            sent.add(producer.send(Production.record(each.get("topic").asText(), each)));
        }
        if (transaction.has("offsets")) {
            producer.sendOffsetsToTransaction(
                Values.offsets(transaction.get("offsets")),
                new ConsumerGroupMetadata(transaction.get("group").asText()));
        }
        // An abort drops records that are not sent yet.
        producer.flush();
        if (transaction.get("commit").asBoolean()) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get().offset());
        }
        return offsets;
    }
}
