package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Repartitioned;

/**
 * captcha: the count of a browser's actions, left-joined with the table of verified browsers: 0 for those. From 5 on
 * a captcha is asked for. Outputs: counts, requests. Records of a browser are in one partition, in which both tables
 * see them in their order.
 */
final class Captcha implements App {
    private static final long ASK_AT = 5;

    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var logs = Json.objectsThat(value -> Json.isText(value, "logger_name"));
        var browsers =
                builder.stream(inputs.get(0), Consumed.with(Serdes.ByteArray(), logs))
                        .filter((key, log) -> log != null)
                        .processValues(Inputs.Placed<byte[]>::new)
                        .filter((key, log) -> log.path("context").path("browserHash").isTextual())
                        .selectKey((key, log) -> log.get("context").get("browserHash").asText())
                        .repartition(Repartitioned.with(Json.TEXT, Json.OBJECT).withName("browsers"));
        var verified =
                browsers.filter((browser, log) -> isBy(log, "captcha"))
                        .mapValues(log -> log.get("context").path("passed").asText().equals("true"))
                        .toTable(Inputs.state(Serdes.Boolean()));
        var actions =
                browsers.filter((browser, log) -> isBy(log, "browser-actions"))
                        .groupByKey(Grouped.with(Json.TEXT, Json.OBJECT))
                        .aggregate(Json::object, (browser, log, sofar) -> add(sofar, log), Inputs.state(Json.OBJECT));
        actions.leftJoin(verified, Captcha::joined)
                .toStream((browser, count) -> Json.key("browser_hash", browser))
                .mapValues(count -> Json.object().put("actions", count.get("actions").asLong()))
                .to(outputs.get(0), Inputs.results());
        // a stream: an action is told, a verification is not
        actions.toStream()
                .leftJoin(verified, Captcha::joined, Joined.with(Json.TEXT, Json.OBJECT, Serdes.Boolean()))
                .filter((browser, count) -> count.get("actions").asLong() >= ASK_AT)
                .selectKey((browser, count) -> Json.key("browser_hash", browser))
                .to(outputs.get(1), Inputs.results());
    }

    private static boolean isBy(ObjectNode log, String logger) {
        return log.get("logger_name").asText().equals(logger);
    }

    private static ObjectNode add(ObjectNode sofar, ObjectNode log) {
        return Json.object()
                .put("actions", sofar.path("actions").asLong() + 1)
                .put("source", log.get("source").asText());
    }

    private static ObjectNode joined(ObjectNode count, Boolean passed) {
        return passed != null && passed ? count.deepCopy().put("actions", 0L) : count;
    }
}
