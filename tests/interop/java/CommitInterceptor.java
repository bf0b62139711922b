package moldau.interop;

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Reports every acknowledged commit, including auto-commits. */
public final class CommitInterceptor implements ConsumerInterceptor<byte[], byte[]> {
    static final String CONSUMER = "moldau.interop.consumer";

    private GroupConsumer consumer;

    @Override
    public void configure(Map<String, ?> settings) {
        consumer = (GroupConsumer) settings.get(CONSUMER);
    }

    @Override
    public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
        return records;
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        consumer.report("committed", Map.of("offsets", Values.writtenOffsets(offsets)));
    }

    @Override
    public void close() {
    }
}
