package peers;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** Whether an app has read its inputs up to the ends that they had when this was made. */
final class Progress {
    private final Admin admin;
    private final String id;
    private final Map<TopicPartition, Long> inputs;

    Progress(Admin admin, String id, List<String> topics) throws Exception {
        this.admin = admin;
        this.id = id;
        this.inputs = ends(topics);
    }

    /**
     * Kafka Streams writes what it makes of a record before it commits that it has read it. So nothing is under way if
     * all is committed up to ends which do not move: those of the inputs, and of the topics between the parts of the
     * topology.
     */
    boolean done() throws Exception {
        if (!reached(inputs)) {
            return false;
        }
        Map<TopicPartition, Long> between = ends(between());
        return reached(between) && ends(between()).equals(between);
    }

    private boolean reached(Map<TopicPartition, Long> ends) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> read =
                admin.listConsumerGroupOffsets(id).partitionsToOffsetAndMetadata().get();
        return ends.entrySet().stream()
                .allMatch(
                        end -> {
                            OffsetAndMetadata upTo = read.get(end.getKey());
                            return end.getValue() == 0 || upTo != null && upTo.offset() >= end.getValue();
                        });
    }

    private Set<String> between() throws Exception {
        return admin.listTopics().names().get().stream()
                .filter(name -> name.startsWith(id + "-") && name.endsWith("-repartition"))
                .collect(Collectors.toSet());
    }

    private Map<TopicPartition, Long> ends(Collection<String> topics) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        for (var topic : admin.describeTopics(topics).allTopicNames().get().values()) {
            topic.partitions().forEach(p -> asked.put(new TopicPartition(topic.name(), p.partition()), OffsetSpec.latest()));
        }
        var found = admin.listOffsets(asked, new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).all().get();
        Map<TopicPartition, Long> ends = new HashMap<>();
        found.forEach((partition, info) -> ends.put(partition, info.offset()));
        return ends;
    }
}
