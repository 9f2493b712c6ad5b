package peers;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * Runs apps as Kafka Streams runs them, up to the present end of their inputs, and ends.
 *
 * <p>Arguments: bootstrap servers, folder of the states, how application ids start, seconds until it gives up; then of
 * each app its name, its inputs and its outputs, each separated by commas. Exit code 1: an app failed, or was not done
 * in time.
 */
public final class Peers {
    private static final Map<String, App> APPS =
            Map.of(
                    "browser-windows", new BrowserWindows(),
                    "captcha", new Captcha(),
                    "clickstream", new Clickstream(),
                    "daily-gains", new DailyGains(),
                    "latest-value", new LatestValue(),
                    "not-viewing", new NotViewing(),
                    "notification-counts", new NotificationCounts(),
                    "product-views", new ProductViews(),
                    "stock-stats", new StockStats(),
                    "word-count", new WordCount());
    private static final int OF_ALL = 4;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration CLOSE = Duration.ofSeconds(30);

    private Peers() {}

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        long giveUpNs = System.nanoTime() + Duration.ofSeconds(Long.parseLong(arguments[3])).toNanos();
        Map<String, KafkaStreams> running = new TreeMap<>();
        Map<String, Progress> progress = new TreeMap<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            for (int i = OF_ALL; i < arguments.length; i += 3) {
                String id = arguments[2] + arguments[i];
                List<String> inputs = Arrays.asList(arguments[i + 1].split(","));
                StreamsBuilder builder = new StreamsBuilder();
                APPS.get(arguments[i]).build(builder, inputs, Arrays.asList(arguments[i + 2].split(",")));
                Properties settings = settings(bootstrap, arguments[1], id);
                KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
                streams.setUncaughtExceptionHandler(
                        error -> {
                            error.printStackTrace();
                            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                        });
                progress.put(id, new Progress(admin, id, inputs));
                running.put(id, streams);
            }
            Runtime.getRuntime().addShutdownHook(new Thread(() -> running.values().forEach(each -> each.close(CLOSE))));
            running.values().forEach(KafkaStreams::start);
            await(running, progress, giveUpNs);
        }
    }

    /** Ends each app when it has read all of its input. Exits with 1 if one fails, or if time is over. */
    private static void await(Map<String, KafkaStreams> running, Map<String, Progress> progress, long giveUpNs)
            throws Exception {
        List<String> left = new ArrayList<>(running.keySet());
        while (!left.isEmpty()) {
            for (String id : List.copyOf(left)) {
                KafkaStreams streams = running.get(id);
                if (streams.state().hasStartedOrFinishedShuttingDown()) {
                    System.err.println(id + " has failed");
                    System.exit(1);
                }
                if (progress.get(id).done()) {
                    streams.close(CLOSE);
                    left.remove(id);
                    System.out.println(id + " is done");
                }
            }
            if (!left.isEmpty() && System.nanoTime() > giveUpNs) {
                System.err.println("not done in time: " + String.join(", ", left));
                System.exit(1);
            }
            Thread.sleep(POLL.toMillis());
        }
    }

    private static Properties settings(String bootstrap, String states, String id) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(states).toString());
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        // a malformed record is skipped
        settings.put(StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        // every update is told at once, and how far an app has read is known soon
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("isolation.level"), "read_committed");
        settings.put(StreamsConfig.producerPrefix("buffer.memory"), 8 << 20);
        // by default, a left join tells what found no match once in a second of the clock on the wall
        settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        return settings;
    }
}
