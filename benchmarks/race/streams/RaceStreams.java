package race;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Runs one query until it is ended.
 *
 * <p>Arguments: bootstrap servers, application id, folder of the states, query, topic of the results.
 */
public final class RaceStreams {
    private static final JsonFactory JSON = new JsonFactory();
    private static final DateTimeFormatter SECOND =
            DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss'Z'").withZone(ZoneOffset.UTC);
    private static final Serde<byte[]> BYTES = Serdes.ByteArray();
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Trade> TRADE = Serdes.serdeFrom((topic, trade) -> unwritten(), (topic, data) -> Trade.read(data));
    private static final Serde<Asks> ASKS =
            Serdes.serdeFrom((topic, asks) -> asks.bytes(), (topic, data) -> data == null ? null : Asks.of(data));
    private static final Serde<Visits> VISITS =
            Serdes.serdeFrom((topic, visits) -> visits.bytes(), (topic, data) -> data == null ? null : Visits.of(data));
    private static final Serde<Integer> PAGE = number("page");
    private static final Serde<Integer> LEVEL = number("level");

    private RaceStreams() {}

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        String result = arguments[4];
        switch (arguments[3]) {
            case "windows" -> windows(builder, result);
            case "filter" -> trades(builder).filter((ticker, trade) -> trade.size > 950).map(RaceStreams::row).to(result, ROWS);
            case "pass-through" -> trades(builder).map(RaceStreams::row).to(result, ROWS);
            case "count" -> count(builder, result);
            case "join" -> join(builder, result);
            default -> throw new IllegalArgumentException("no query " + arguments[3]);
        }
        Properties settings = settings(arguments);
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(
                error -> {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                    return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(arguments[2]).toString());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        // one update of a key in each commit, of which there are as many as Flink has checkpoints
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 128 << 20);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 2_000);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("max.poll.records"), 10_000);
        settings.put(StreamsConfig.producerPrefix("compression.type"), "lz4");
        settings.put(StreamsConfig.producerPrefix("batch.size"), 256 << 10);
        return settings;
    }

    private static final Produced<byte[], byte[]> ROWS = Produced.with(BYTES, BYTES);

    private static KStream<String, Trade> trades(StreamsBuilder builder) {
        return builder.stream("trades", Consumed.with(TEXT, TRADE));
    }

    private static KeyValue<byte[], byte[]> row(String ticker, Trade trade) {
        byte[] value =
                json(
                        out -> {
                            out.writeStringField("side", trade.side);
                            out.writeNumberField("price", BigDecimal.valueOf(trade.cents, 2));
                            out.writeNumberField("size", trade.size);
                        });
        return KeyValue.pair(json(out -> out.writeStringField("ticker", ticker)), value);
    }

    private static void windows(StreamsBuilder builder, String result) {
        TimeWindows windows =
                TimeWindows.ofSizeAndGrace(Duration.ofSeconds(5), Duration.ofSeconds(10)).advanceBy(Duration.ofSeconds(1));
        trades(builder)
                .filter((ticker, trade) -> trade.side.equals("ask"))
                .groupByKey(Grouped.with(TEXT, TRADE))
                .windowedBy(windows)
                .aggregate(
                        () -> Asks.NONE,
                        (ticker, trade, sofar) -> sofar.with(trade.cents),
                        Materialized.<String, Asks, WindowStore<Bytes, byte[]>>with(TEXT, ASKS))
                .toStream()
                .map(
                        (window, asks) -> {
                            String start = SECOND.format(Instant.ofEpochMilli(window.window().start()));
                            byte[] key =
                                    json(
                                            out -> {
                                                out.writeStringField("ticker", window.key());
                                                out.writeStringField("window_start", start);
                                            });
                            return KeyValue.pair(key, asks.row());
                        })
                .to(result, ROWS);
    }

    private static void count(StreamsBuilder builder, String result) {
        builder.stream("visits", Consumed.with(TEXT, PAGE))
                .groupByKey(Grouped.with(TEXT, PAGE))
                .aggregate(
                        () -> Visits.NONE,
                        (member, page, sofar) -> new Visits(sofar.visits + 1, Math.max(sofar.page, page)),
                        Materialized.<String, Visits, KeyValueStore<Bytes, byte[]>>with(TEXT, VISITS))
                .toStream()
                .map((member, visits) -> KeyValue.pair(member(member), visits.row()))
                .to(result, ROWS);
    }

    private static void join(StreamsBuilder builder, String result) {
        var members =
                builder.table(
                        "members",
                        Consumed.with(TEXT, LEVEL),
                        Materialized.<String, Integer, KeyValueStore<Bytes, byte[]>>with(TEXT, LEVEL));
        builder.stream("visits", Consumed.with(TEXT, PAGE))
                .leftJoin(members, (page, level) -> visit(page, level), Joined.with(TEXT, PAGE, LEVEL))
                .map((member, value) -> KeyValue.pair(member(member), value))
                .to(result, ROWS);
    }

    private static byte[] member(String member) {
        return json(out -> out.writeStringField("member", member));
    }

    private static byte[] visit(int page, Integer level) {
        return json(
                out -> {
                    out.writeNumberField("page", page);
                    if (level == null) {
                        out.writeNullField("level");
                    } else {
                        out.writeNumberField("level", level);
                    }
                });
    }

    private record Trade(String side, long cents, int size) {
        static Trade read(byte[] data) {
            String side = null;
            long cents = 0;
            int size = 0;
            try (JsonParser in = JSON.createParser(data)) {
                in.nextToken();
                while (in.nextToken() == JsonToken.FIELD_NAME) {
                    String name = in.currentName();
                    in.nextToken();
                    switch (name) {
                        case "side" -> side = in.getText();
                        case "price" -> cents = in.getDecimalValue().movePointRight(2).longValueExact();
                        case "size" -> size = in.getIntValue();
                        default -> in.skipChildren();
                    }
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return new Trade(side, cents, size);
        }
    }

    /** Lowest and sum in cents. */
    private record Asks(long lowest, long sum, long trades) {
        static final Asks NONE = new Asks(Long.MAX_VALUE, 0, 0);

        static Asks of(byte[] data) {
            ByteBuffer in = ByteBuffer.wrap(data);
            return new Asks(in.getLong(), in.getLong(), in.getLong());
        }

        byte[] bytes() {
            return ByteBuffer.allocate(24).putLong(lowest).putLong(sum).putLong(trades).array();
        }

        Asks with(long cents) {
            return new Asks(Math.min(lowest, cents), sum + cents, trades + 1);
        }

        byte[] row() {
            BigDecimal average = BigDecimal.valueOf(sum, 2).divide(BigDecimal.valueOf(trades), 6, RoundingMode.HALF_UP);
            return json(
                    out -> {
                        out.writeNumberField("lowest_ask", BigDecimal.valueOf(lowest, 2));
                        out.writeNumberField("trades", trades);
                        out.writeNumberField("average_ask", average);
                    });
        }
    }

    private record Visits(long visits, int page) {
        static final Visits NONE = new Visits(0, Integer.MIN_VALUE);

        static Visits of(byte[] data) {
            ByteBuffer in = ByteBuffer.wrap(data);
            return new Visits(in.getLong(), in.getInt());
        }

        byte[] bytes() {
            return ByteBuffer.allocate(12).putLong(visits).putInt(page).array();
        }

        byte[] row() {
            return json(
                    out -> {
                        out.writeNumberField("visits", visits);
                        out.writeNumberField("page", page);
                    });
        }
    }

    /** An object with one field, which is a number. */
    private static Serde<Integer> number(String field) {
        return Serdes.serdeFrom(
                (topic, value) -> value == null ? null : json(out -> out.writeNumberField(field, value)),
                (topic, data) -> {
                    if (data == null) {
                        return null;
                    }
                    Integer found = null;
                    try (JsonParser in = JSON.createParser(data)) {
                        in.nextToken();
                        while (in.nextToken() == JsonToken.FIELD_NAME) {
                            String name = in.currentName();
                            in.nextToken();
                            if (name.equals(field)) {
                                found = in.getIntValue();
                            } else {
                                in.skipChildren();
                            }
                        }
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                    return found;
                });
    }

    /** A trade is never moved to another partition, and never kept. */
    private static byte[] unwritten() {
        throw new UnsupportedOperationException("a trade is only read");
    }

    private interface Fields {
        void write(JsonGenerator out) throws IOException;
    }

    private static byte[] json(Fields fields) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(64);
        try (JsonGenerator out = JSON.createGenerator(bytes)) {
            out.writeStartObject();
            fields.write(out);
            out.writeEndObject();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return bytes.toByteArray();
    }
}
