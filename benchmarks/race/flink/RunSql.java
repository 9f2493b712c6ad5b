package race;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs statements of Flink's SQL in a cluster within this JVM, and ends when the job of the last one has ended.
 *
 * <p>Arguments: a file of statements, which blank lines separate; a folder for checkpoints; the number of task slots.
 */
public final class RunSql {
    private RunSql() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings =
                Configuration.fromMap(
                        Map.of(
                                "execution.checkpointing.interval", "2 s",
                                "execution.checkpointing.mode", "EXACTLY_ONCE",
                                "execution.checkpointing.storage", "filesystem",
                                "execution.checkpointing.dir", Path.of(arguments[1]).toUri().toString(),
                                "state.backend.type", "hashmap",
                                "parallelism.default", arguments[2],
                                "table.local-time-zone", "UTC",
                                // an update for each key in a bundle, not for each record
                                "table.exec.mini-batch.enabled", "true",
                                "table.exec.mini-batch.allow-latency", "1 s",
                                "table.exec.mini-batch.size", "50000"));
        TableEnvironment sql =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
        TableResult last = null;
        for (String statement : Files.readString(Path.of(arguments[0])).split("\n\n")) {
            last = sql.executeSql(statement.strip());
        }
        last.await();
        // without waiting for the threads of the cluster
        System.exit(0);
    }
}
