package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Conversion between JSON values and those of Kafka's clients. A partition is written as topic:number. */
final class Values {
    private Values() {
    }

    static Properties settings(JsonNode given) {
        Properties settings = new Properties();
        given.forEachEntry((name, value) -> settings.setProperty(name, value.asText()));
        return settings;
    }

    static List<String> strings(JsonNode given) {
        List<String> found = new ArrayList<>();
        given.forEach(each -> found.add(each.asText()));
        return found;
    }

    static TopicPartition partition(String written) {
        int colon = written.lastIndexOf(':');
        return new TopicPartition(written.substring(0, colon), Integer.parseInt(written.substring(colon + 1)));
    }

    static List<TopicPartition> partitions(JsonNode given) {
        List<TopicPartition> found = new ArrayList<>();
        given.forEach(each -> found.add(partition(each.asText())));
        return found;
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode given) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        given.forEachEntry((partition, offset) -> found.put(partition(partition),
            new OffsetAndMetadata(offset.get(0).asLong(), Optional.empty(), offset.get(1).asText())));
        return found;
    }

    static String written(TopicPartition partition) {
        return partition.topic() + ":" + partition.partition();
    }

    static List<String> written(Collection<TopicPartition> partitions) {
        return partitions.stream().map(Values::written).sorted().toList();
    }

    /** Partition to [offset, metadata]; a partition without an offset has null. */
    static Map<String, Object> writtenOffsets(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Map<String, Object> found = new LinkedHashMap<>();
        offsets.forEach((partition, offset) ->
            found.put(written(partition), offset == null ? null : List.of(offset.offset(), offset.metadata())));
        return found;
    }
}
