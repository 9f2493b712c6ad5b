package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.Comparator;
import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;

/** daily-gains: of each ticker and day the first, last, lowest and highest price by event time, and the gain. */
final class DailyGains implements App {
    private static final Comparator<ObjectNode> ORDER =
            Comparator.<ObjectNode>comparingLong(each -> each.get("time_ms").asLong())
                    .thenComparingLong(each -> each.get("offset").asLong());

    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var trades = Json.objectsThat(value -> value.path("price").isNumber());
        Inputs.stream(builder, inputs.get(0), trades)
                .processValues(Inputs.Placed<String>::new)
                .groupBy(
                        (ticker, trade) ->
                                Json.key("ticker", ticker, "day", Inputs.day(trade.get("time_ms").asLong())),
                        Grouped.with("days", Json.TEXT, Json.OBJECT))
                .aggregate(Json::object, (day, trade, sofar) -> add(sofar, trade), Inputs.state(Json.OBJECT))
                .toStream()
                .mapValues(DailyGains::row)
                .to(outputs.get(0), Inputs.results());
    }

    private static ObjectNode add(ObjectNode sofar, ObjectNode trade) {
        if (sofar.isEmpty()) {
            return Json.object()
                    .<ObjectNode>set("first", trade)
                    .<ObjectNode>set("last", trade)
                    .<ObjectNode>set("lowest", trade)
                    .set("highest", trade);
        }
        ObjectNode next = sofar.deepCopy();
        if (ORDER.compare(trade, (ObjectNode) sofar.get("first")) < 0) {
            next.set("first", trade);
        }
        if (ORDER.compare(trade, (ObjectNode) sofar.get("last")) > 0) {
            next.set("last", trade);
        }
        if (price(trade).compareTo(price(sofar, "lowest")) < 0) {
            next.set("lowest", trade);
        }
        if (price(trade).compareTo(price(sofar, "highest")) > 0) {
            next.set("highest", trade);
        }
        return next;
    }

    private static ObjectNode row(ObjectNode sofar) {
        BigDecimal open = price(sofar, "first");
        BigDecimal close = price(sofar, "last");
        BigDecimal gained = close.subtract(open).multiply(BigDecimal.valueOf(100));
        return Json.object()
                .put("open", open)
                .put("close", close)
                .put("lowest", price(sofar, "lowest"))
                .put("highest", price(sofar, "highest"))
                .put("gain_percent", open.signum() == 0 ? null : gained.divide(open, 4, RoundingMode.HALF_UP));
    }

    private static BigDecimal price(ObjectNode sofar, String of) {
        return price((ObjectNode) sofar.get(of));
    }

    private static BigDecimal price(ObjectNode trade) {
        return trade.get("price").decimalValue();
    }
}
