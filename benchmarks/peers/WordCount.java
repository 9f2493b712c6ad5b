package peers;

import java.util.List;
import java.util.Locale;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;

/** word-count: lower case, split on what is no word character, without empty words and "the", counted. */
final class WordCount implements App {
    @Override
    public void build(StreamsBuilder builder, List<String> inputs, List<String> outputs) {
        builder.stream(inputs.get(0), Consumed.with(Serdes.ByteArray(), Json.TEXT))
                .filter((key, line) -> line != null)
                .flatMapValues(line -> List.of(line.toLowerCase(Locale.ROOT).split("\\W+")))
                .filter((key, word) -> !word.isEmpty() && !word.equals("the"))
                .groupBy((key, word) -> word, Grouped.with("words", Json.TEXT, Json.TEXT))
                .count(Inputs.state(Serdes.Long()))
                .toStream((word, count) -> Json.key("word", word))
                .mapValues(count -> Json.object().put("count", count))
                .to(outputs.get(0), Inputs.results());
    }
}
