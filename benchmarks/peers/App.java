package peers;

import java.util.List;
import org.apache.kafka.streams.StreamsBuilder;

/** One app as a topology of Kafka Streams. */
interface App {
    /** Reads the topics {@code inputs} and writes the topics {@code outputs}, which exist. */
    void build(StreamsBuilder builder, List<String> inputs, List<String> outputs);
}
