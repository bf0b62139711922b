import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Kafka's assignors, one case per line: a name, topics as name:count and members as id/instance/subscription,
 * separated by tabs, with spaces between elements. The output is id/assignment for each member.
 */
public final class Assignors {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split("\t", -1)));
        }
    }

    private static String answer(String[] parts) {
        Map<String, Subscription> members = new TreeMap<>();
        for (String member : words(parts[2])) {
            String[] fields = member.split("/", -1);
            Subscription subscription =
                ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HEX.parseHex(fields[2])));
            if (!fields[1].isEmpty()) {
                subscription.setGroupInstanceId(java.util.Optional.of(fields[1]));
            }
            members.put(fields[0], subscription);
        }
        List<String> answers = new ArrayList<>();
        assignor(parts[0]).assign(cluster(parts[1]), new GroupSubscription(members)).groupAssignment().forEach(
            (member, assignment) -> {
                ByteBuffer buffer = ConsumerProtocol.serializeAssignment(assignment);
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                answers.add(member + "/" + HEX.formatHex(bytes));
            });
        return String.join(" ", answers);
    }

    private static Cluster cluster(String topics) {
        Node node = new Node(1, "localhost", 9092);
        Node[] nodes = {node};
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String topic : words(topics)) {
            String[] fields = topic.split(":");
            for (int index = 0; index < Integer.parseInt(fields[1]); index++) {
                partitions.add(new PartitionInfo(fields[0], index, node, nodes, nodes));
            }
        }
        return new Cluster("cluster", List.of(node), partitions, Set.of(), Set.of());
    }

    private static List<String> words(String text) {
        return text.isEmpty() ? List.of() : List.of(text.split(" "));
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }
}
