package peers;

import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;

/** latest-value: the newest value of each key, as a table, and that as a stream of updates again. */
final class LatestValue implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var values = Json.objectsThat(value -> value.path("value").canConvertToExactIntegral());
        builder.table(inputs.get(0), Consumed.with(Json.TEXT, values), Inputs.state(values))
                .toStream((key, value) -> Json.key("key", key))
                .mapValues(value -> value == null ? null : Json.object().put("value", value.get("value").asLong()))
                .to(outputs.get(0), Inputs.results());
    }
}
