package peers;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** What the apps share: their streams, where a record came from, how times are written, where states are. */
final class Inputs {
    private static final DateTimeFormatter SECOND = format("yyyy-MM-dd'T'HH:mm:ss'Z'");
    private static final DateTimeFormatter MILLISECOND = format("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'");
    private static final DateTimeFormatter DAY = format("yyyy-MM-dd");

    private Inputs() {}

    /** A topic's records with a key and a value that fit. */
    static <V> KStream<String, V> stream(StreamsBuilder builder, String topic, Serde<V> values) {
        return builder.stream(topic, Consumed.with(Json.TEXT, values))
                .filter((key, value) -> key != null && value != null);
    }

    /** Where results go; a null value is a tombstone. */
    static Produced<String, ObjectNode> results() {
        return Produced.with(Json.TEXT, Json.OBJECT);
    }

    /** A state in memory, without a changelog: a peer runs once. */
    static <V> Materialized<String, V, KeyValueStore<Bytes, byte[]>> state(Serde<V> values) {
        return Materialized.<String, V, KeyValueStore<Bytes, byte[]>>with(Json.TEXT, values)
                .withLoggingDisabled();
    }

    /** The same for windows. */
    static <V> Materialized<String, V, WindowStore<Bytes, byte[]>> windows(Serde<V> values) {
        return Materialized.<String, V, WindowStore<Bytes, byte[]>>with(Json.TEXT, values)
                .withLoggingDisabled();
    }

    /** The key of a result by window: a field {@code name}, and the start of the window. */
    static String key(String name, String value, Windowed<String> window) {
        String start = SECOND.format(Instant.ofEpochMilli(window.window().start()));
        return Json.key(name, value, "window_start", start);
    }

    static String millisecond(long timeMs) {
        return MILLISECOND.format(Instant.ofEpochMilli(timeMs));
    }

    static String day(long timeMs) {
        return DAY.format(Instant.ofEpochMilli(timeMs));
    }

    private static DateTimeFormatter format(String pattern) {
        return DateTimeFormatter.ofPattern(pattern).withZone(ZoneOffset.UTC);
    }

    /** Adds to a value its record's event time, {@code time_ms}, and its place: {@code topic:partition:offset}. */
    static final class Placed<K> extends ContextualFixedKeyProcessor<K, ObjectNode, ObjectNode> {
        @Override
        public void process(FixedKeyRecord<K, ObjectNode> record) {
            RecordMetadata from = context().recordMetadata().orElseThrow();
            ObjectNode value = record.value().deepCopy();
            value.put("time_ms", record.timestamp()).put("offset", from.offset());
            value.put("source", from.topic() + ":" + from.partition() + ":" + from.offset());
            context().forward(record.withValue(value));
        }
    }
}
