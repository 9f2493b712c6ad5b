package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.time.Duration;
import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.TimeWindows;

/** stock-stats: asks only; windows of 5 s advancing by 1 s, with 10 s of grace: lowest, number and average. */
final class StockStats implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var windows =
                TimeWindows.ofSizeAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(10))
                        .advanceBy(Duration.ofSeconds(1));
        var trades = Json.objectsThat(value -> Json.isText(value, "side") && value.path("price").isNumber());
        Inputs.stream(builder, inputs.get(0), trades)
                .filter((ticker, trade) -> trade.get("side").asText().equals("ask"))
                .groupByKey(Grouped.with(Json.TEXT, Json.OBJECT))
                .windowedBy(windows)
                .aggregate(Json::object, (ticker, trade, sofar) -> add(sofar, trade), Inputs.windows(Json.OBJECT))
                .toStream((window, sofar) -> Inputs.key("ticker", window.key(), window))
                .mapValues(StockStats::row)
                .to(outputs.get(0), Inputs.results());
    }

    private static ObjectNode add(ObjectNode sofar, ObjectNode trade) {
        BigDecimal price = trade.get("price").decimalValue();
        boolean first = !sofar.has("trades");
        BigDecimal lowest = first ? price : price.min(sofar.get("lowest").decimalValue());
        BigDecimal sum = first ? price : price.add(sofar.get("sum").decimalValue());
        return Json.object()
                .put("lowest", lowest)
                .put("sum", sum)
                .put("trades", sofar.path("trades").asLong() + 1);
    }

    private static ObjectNode row(ObjectNode sofar) {
        long trades = sofar.get("trades").asLong();
        BigDecimal sum = sofar.get("sum").decimalValue();
        return Json.object()
                .put("lowest_ask", sofar.get("lowest").decimalValue())
                .put("trades", trades)
                .put("average_ask", sum.divide(BigDecimal.valueOf(trades), 6, RoundingMode.HALF_UP));
    }
}
