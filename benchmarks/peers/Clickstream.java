package peers;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.Stores;

/**
 * clickstream: each click left-joined with its user's profile as of then, and with the searches that the user made at
 * most 1 s before it.
 */
final class Clickstream implements App {
    private static final Duration GRACE = Duration.ofSeconds(10);

    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var profiles =
                builder.table(
                        inputs.get(1),
                        Consumed.with(Json.TEXT, Json.objectsThat(Clickstream::isProfile)),
                        Materialized.as(Stores.persistentVersionedKeyValueStore("profiles", Duration.ofDays(1))));
        var searches =
                Inputs.stream(builder, inputs.get(2), Json.objectsThat(value -> Json.isText(value, "terms")));
        // a click comes to this join when it has waited for profiles, so its window is open for that time, too
        var justBefore =
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(1), GRACE.plus(GRACE)).after(Duration.ZERO);
        Inputs.stream(builder, inputs.get(0), Json.objectsThat(value -> Json.isText(value, "page")))
                .processValues(Inputs.Placed<String>::new)
                .leftJoin(
                        profiles,
                        (ObjectNode click, ObjectNode profile) -> click.<ObjectNode>set("profile", profile),
                        Joined.with(Json.TEXT, Json.OBJECT, Json.OBJECT, "as-of", GRACE))
                .leftJoin(
                        searches,
                        Clickstream::row,
                        justBefore,
                        StreamJoined.with(Json.TEXT, Json.OBJECT, Json.OBJECT).withLoggingDisabled())
                .selectKey((user, row) -> Json.key("user", user))
                .to(outputs.get(0), Inputs.results());
    }

    private static boolean isProfile(ObjectNode value) {
        JsonNode age = value.path("age");
        JsonNode interests = value.path("interests");
        return (age.isMissingNode() || age.isNull() || age.canConvertToExactIntegral())
                && (interests.isMissingNode() || interests.isNull() || interests.isArray());
    }

    private static ObjectNode row(ObjectNode click, ObjectNode search) {
        ObjectNode row = Json.object().put("page", click.get("page").asText());
        row.put("at", Inputs.millisecond(click.get("time_ms").asLong()));
        row.put("terms", search == null ? null : search.get("terms").asText());
        for (String name : List.of("age", "gender", "interests", "zip")) {
            JsonNode known = click.path("profile").path(name);
            row.set(name, known.isMissingNode() ? null : known);
        }
        return row;
    }
}
