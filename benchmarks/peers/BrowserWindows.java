package peers;

import java.time.Duration;
import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.TimeWindows;

/** browser-windows, by event time: actions of each browser in windows of 5 s advancing by 2 s, 10 s of grace. */
final class BrowserWindows implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var windows =
                TimeWindows.ofSizeAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(10))
                        .advanceBy(Duration.ofSeconds(2));
        var actions = Json.objectsThat(value -> Json.isText(value, "action"));
        Inputs.stream(builder, inputs.get(0), actions)
                .groupByKey(Grouped.with(Json.TEXT, Json.OBJECT))
                .windowedBy(windows)
                .count(Inputs.windows(Serdes.Long()))
                .toStream((window, count) -> Inputs.key("browser_hash", window.key(), window))
                .mapValues(count -> Json.object().put("actions", count))
                .to(outputs.get(0), Inputs.results());
    }
}
