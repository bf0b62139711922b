package moldau.interop;

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Tells of every commit that the broker acknowledged, also of those the consumer makes by itself. */
public final class CommitWitness implements ConsumerInterceptor<byte[], byte[]> {
    static final String TELL_TO = "moldau.interop.tell.to";

    private GroupConsumer consumer;

    @Override
    public void configure(Map<String, ?> settings) {
        consumer = (GroupConsumer) settings.get(TELL_TO);
    }

    @Override
    public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
        return records;
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        consumer.tell("committed", Map.of("offsets", Values.writtenOffsets(offsets)));
    }

    @Override
    public void close() {
    }
}
