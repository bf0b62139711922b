import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies a topic to another one: records and offsets are in one transaction, and every seventh transaction is aborted
 * and repeated. Ends with an exception if the producer cannot be used any more.
 * Arguments: bootstrap servers, input topic, output topic, consumer group, transactional id.
 */
public final class ExactlyOnceCopy {
    private ExactlyOnceCopy() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[3]);
        // A successor gets the partitions at once.
        settings.put("group.instance.id", arguments[4]);
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        Properties transactions = new Properties();
        transactions.put("bootstrap.servers", arguments[0]);
        transactions.put("transactional.id", arguments[4]);
        transactions.put("max.block.ms", "600000");
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(transactions, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[1]));
            for (long number = 1; true; number++) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    copy(records, consumer, producer, arguments[2], number % 7 != 0);
                }
            }
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void copy(
            ConsumerRecords<byte[], byte[]> records, KafkaConsumer<byte[], byte[]> consumer,
            KafkaProducer<byte[], byte[]> producer, String output, boolean commit) {
        try {
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> each : records) {
                producer.send(new ProducerRecord<>(output, each.partition(), each.key(), each.value()));
            }
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            if (commit) {
                producer.commitTransaction();
                return;
            }
            producer.flush();
        } catch (ApplicationRecoverableException problem) {
            throw problem;
        } catch (KafkaException problem) {
            System.out.println("aborts after " + problem);
        }
        producer.abortTransaction();
        rewind(consumer);
    }

    private static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>(consumer.committed(consumer.assignment()));
        committed.forEach((partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
    }
}
