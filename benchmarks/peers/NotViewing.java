package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.List;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * not-viewing: each tick left-joined with the user's state as of the tick's time; only users who have closed the
 * page are told. The table keeps its versions, and ticks wait for 10 s of event time.
 */
final class NotViewing implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var states =
                builder.table(
                        inputs.get(1),
                        Consumed.with(Json.TEXT, Json.TEXT),
                        Materialized.as(Stores.persistentVersionedKeyValueStore("open", Duration.ofDays(1))));
        Inputs.stream(builder, inputs.get(0), Json.TEXT)
                .mapValues(tick -> Json.object())
                .processValues(Inputs.Placed<String>::new)
                .leftJoin(
                        states,
                        (ObjectNode tick, String state) -> tick.put("state", state),
                        Joined.with(Json.TEXT, Json.OBJECT, Json.TEXT, "as-of", Duration.ofSeconds(10)))
                .filter((user, tick) -> tick.path("state").asText().equals("Close"))
                .map((user, tick) -> KeyValue.pair(Json.key("user", user), told(tick)))
                .to(outputs.get(0), Inputs.results());
    }

    private static ObjectNode told(ObjectNode tick) {
        return Json.object()
                .put("message", "You are not currently viewing Facebook.")
                .put("at", Inputs.millisecond(tick.get("time_ms").asLong()))
                .put("source", tick.get("source").asText());
    }
}
