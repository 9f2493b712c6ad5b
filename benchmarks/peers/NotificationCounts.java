package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * notification-counts: notifications of each user in windows of 10 min advancing by 1 min, 10 min of grace. Their
 * time is that of the tick, {@code at}.
 */
final class NotificationCounts implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var windows =
                TimeWindows.ofSizeAndGrace(Duration.ofMinutes(10), Duration.ofMinutes(10))
                        .advanceBy(Duration.ofMinutes(1));
        var told = Json.objectsThat(value -> Json.isText(value, "at"));
        var read =
                Consumed.with(Json.TEXT, told)
                        .withTimestampExtractor(
                                (record, partitionTime) ->
                                        Instant.parse(((ObjectNode) record.value()).get("at").asText())
                                                .toEpochMilli());
        builder.stream(inputs.get(0), read)
                .groupByKey(Grouped.with(Json.TEXT, Json.OBJECT))
                .windowedBy(windows)
                .count(Inputs.windows(Serdes.Long()))
                .toStream(
                        (window, count) -> Inputs.key("user", Json.parse(window.key()).get("user").asText(), window))
                .mapValues(count -> Json.object().put("notifications", count))
                .to(outputs.get(0), Inputs.results());
    }
}
