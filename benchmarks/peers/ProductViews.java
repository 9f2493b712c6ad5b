package peers;

import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;

/** product-views: views of each product, and an alert when there are 1000. Outputs: counts, alerts. */
final class ProductViews implements App {
    private static final long ALERT_AT = 1000;

    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        var views = Json.objectsThat(value -> Json.isText(value, "user"));
        var counts =
                Inputs.stream(builder, inputs.get(0), views)
                        .groupByKey(Grouped.with(Json.TEXT, Json.OBJECT))
                        .count(Inputs.state(Serdes.Long()))
                        .toStream((product, count) -> Json.key("product", product));
        counts.mapValues(count -> Json.object().put("views", count)).to(outputs.get(0), Inputs.results());
        // without a cache, every count comes by
        counts.filter((product, count) -> count == ALERT_AT)
                .mapValues(count -> Json.object().put("views", count))
                .to(outputs.get(1), Inputs.results());
    }
}
