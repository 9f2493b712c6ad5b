package peers;

import com.fasterxml.jackson.core.StreamWriteFeature;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.function.Predicate;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** How keys and values are read and written. What is malformed raises, so Kafka Streams skips its record. */
final class Json {
    private static final JsonMapper MAPPER =
            JsonMapper.builder()
                    .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
                    .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
                    .enable(StreamWriteFeature.WRITE_BIGDECIMAL_AS_PLAIN)
                    .build();

    static final Serde<String> TEXT =
            Serdes.serdeFrom((topic, text) -> bytes(text), (topic, data) -> text(data));
    static final Serde<ObjectNode> OBJECT = objectsThat(value -> true);

    private Json() {}

    static ObjectNode object() {
        return MAPPER.createObjectNode();
    }

    /** JSON text of one field, as in the key of a result. */
    static String key(String name, String value) {
        return object().put(name, value).toString();
    }

    /** JSON text of two fields. */
    static String key(String name, String value, String secondName, String secondValue) {
        return object().put(name, value).put(secondName, secondValue).toString();
    }

    static ObjectNode parse(String text) {
        try {
            JsonNode found = MAPPER.readTree(text);
            if (found instanceof ObjectNode whole) {
                return whole;
            }
        } catch (IOException error) {
            throw new SerializationException("not JSON", error);
        }
        throw new SerializationException("not a JSON object");
    }

    /** Objects for which {@code fits} is true; others are malformed. */
    static Serde<ObjectNode> objectsThat(Predicate<ObjectNode> fits) {
        return Serdes.serdeFrom(
                (topic, value) -> value == null ? null : bytes(value.toString()),
                (topic, data) -> {
                    if (data == null) {
                        return null;
                    }
                    ObjectNode found = parse(text(data));
                    if (!fits.test(found)) {
                        throw new SerializationException("a field is missing, or of another type");
                    }
                    return found;
                });
    }

    static boolean isText(ObjectNode value, String field) {
        return value.path(field).isTextual();
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] data) {
        if (data == null) {
            return null;
        }
        try {
            // a new decoder reports what is not UTF-8; `new String` would put another character in its place
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString();
        } catch (CharacterCodingException error) {
            throw new SerializationException("not UTF-8", error);
        }
    }
}
