package moldau.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Admin clients, one per broker. */
final class Administration {
    private final Map<String, Admin> admins = new ConcurrentHashMap<>();

    Object perform(JsonNode command) throws Exception {
        Admin admin = admins.computeIfAbsent(command.get("bootstrap").asText(), bootstrap -> {
            Properties settings = new Properties();
            settings.setProperty("bootstrap.servers", bootstrap);
            settings.setProperty("reconnect.backoff.max.ms", "200");
            return Admin.create(settings);
        });
        String method = command.get("method").asText();
        return method.contains("Group") ? ofGroups(admin, method, command) : ofTopics(admin, method, command);
    }

    private static Object ofTopics(Admin admin, String method, JsonNode command) throws Exception {
        String topic = command.path("topic").asText();
        switch (method) {
            case "createTopic":
                NewTopic fresh = new NewTopic(topic, Optional.of(command.get("partitions").asInt()), Optional.empty());
                Map<String, String> configs = new HashMap<>();
                command.path("configs").forEachEntry((name, value) -> configs.put(name, value.asText()));
                admin.createTopics(List.of(fresh.configs(configs))).all().get();
                return null;
            case "listTopics":
                return admin.listTopics().names().get().stream().sorted().toList();
            case "describeTopic":
                return described(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic));
            case "createPartitions":
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(command.get("partitions").asInt())))
                    .all().get();
                return null;
            case "alterConfig":
                ConfigEntry entry = new ConfigEntry(command.get("name").asText(), command.path("value").asText());
                AlterConfigOp.OpType operation = AlterConfigOp.OpType.valueOf(command.get("operation").asText());
                admin.incrementalAlterConfigs(
                    Map.of(ofTopic(topic), List.of(new AlterConfigOp(entry, operation)))).all().get();
                return null;
            case "describeConfig":
                ConfigEntry found = admin.describeConfigs(List.of(ofTopic(topic))).all().get().get(ofTopic(topic))
                    .get(command.get("name").asText());
                return List.of(found.value(), found.source().name());
            case "deleteTopic":
                admin.deleteTopics(List.of(topic)).all().get();
                return null;
            case "deleteRecords":
                TopicPartition shortened = Values.partition(command.get("partition").asText());
                RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
                return admin.deleteRecords(Map.of(shortened, before)).lowWatermarks().get(shortened).get().lowWatermark();
            case "listOffset":
                TopicPartition asked = Values.partition(command.get("partition").asText());
                return admin.listOffsets(Map.of(asked, specification(command.get("at").asText())))
                    .partitionResult(asked).get().offset();
            case "describeCluster":
                var cluster = admin.describeCluster();
                return Map.of("id", cluster.clusterId().get(), "controller", cluster.controller().get().id(),
                    "nodes", cluster.nodes().get().stream().map(node -> node.host() + ":" + node.port()).toList());
            default:
                throw new IllegalArgumentException("no such method: " + method);
        }
    }

    private static Object ofGroups(Admin admin, String method, JsonNode command) throws Exception {
        String group = command.path("group").asText();
        switch (method) {
            case "listGroups":
                Set<GroupState> states = Values.strings(command.path("states")).stream().map(GroupState::parse)
                    .collect(Collectors.toSet());
                Set<GroupType> types = Values.strings(command.path("types")).stream().map(GroupType::parse)
                    .collect(Collectors.toSet());
                List<Object> listed = new ArrayList<>();
                admin.listGroups(new ListGroupsOptions().inGroupStates(states).withTypes(types)).all().get().forEach(
                    each -> listed.add(Map.of("group", each.groupId(), "protocol", each.protocol(),
                        "state", each.groupState().map(GroupState::toString).orElse(""),
                        "type", each.type().map(GroupType::toString).orElse(""))));
                return listed;
            case "describeGroup":
                return described(admin.describeConsumerGroups(List.of(group)).all().get().get(group));
            case "deleteGroup":
                admin.deleteConsumerGroups(List.of(group)).all().get();
                return null;
            case "listGroupOffsets":
                return Values.writtenOffsets(
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get());
            case "alterGroupOffsets":
                admin.alterConsumerGroupOffsets(group, Values.offsets(command.get("offsets"))).all().get();
                return null;
            case "deleteGroupOffsets":
                admin.deleteConsumerGroupOffsets(group, new HashSet<>(Values.partitions(command.get("partitions"))))
                    .all().get();
                return null;
            case "removeGroupMembers":
                List<String> instances = Values.strings(command.path("instances"));
                RemoveMembersFromConsumerGroupOptions whom = instances.isEmpty()
                    ? new RemoveMembersFromConsumerGroupOptions()
                    : new RemoveMembersFromConsumerGroupOptions(instances.stream().map(MemberToRemove::new).toList());
                admin.removeMembersFromConsumerGroup(group, whom).all().get();
                return null;
            default:
                throw new IllegalArgumentException("no such method: " + method);
        }
    }

    private static ConfigResource ofTopic(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    private static OffsetSpec specification(String written) {
        switch (written) {
            case "earliest":
                return OffsetSpec.earliest();
            case "latest":
                return OffsetSpec.latest();
            case "max-timestamp":
                return OffsetSpec.maxTimestamp();
            default:
                return OffsetSpec.forTimestamp(Long.parseLong(written));
        }
    }

    private static Map<String, Object> described(TopicDescription topic) {
        return Map.of("id", topic.topicId().toString(), "internal", topic.isInternal(),
            "leaders", topic.partitions().stream().map(each -> each.leader().id()).toList(),
            "replicas", topic.partitions().stream().map(each -> each.replicas().size()).toList());
    }

    private static Map<String, Object> described(ConsumerGroupDescription group) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("state", group.groupState().toString());
        found.put("type", group.type().toString());
        found.put("simple", group.isSimpleConsumerGroup());
        found.put("assignor", group.partitionAssignor());
        found.put("coordinator", group.coordinator().id());
        found.put("members", members(group.members()));
        return found;
    }

    private static List<Map<String, Object>> members(Collection<MemberDescription> members) {
        List<Map<String, Object>> found = new ArrayList<>();
        for (MemberDescription each : members) {
            Map<String, Object> member = new LinkedHashMap<>();
            member.put("member", each.consumerId());
            member.put("instance", each.groupInstanceId().orElse(null));
            member.put("client", each.clientId());
            member.put("host", each.host());
            member.put("partitions", Values.written(each.assignment().topicPartitions()));
            found.add(member);
        }
        return found;
    }
}
