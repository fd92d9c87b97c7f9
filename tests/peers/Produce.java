// Writes keyed records with Kafka's own producer, so that keylane reads what the reference client writes: every
// compression, null keys and values, empty ones, headers (also repeated names), and the default partitioner.
//
//   scripts/kafka run tests/peers/Produce.java BROKERS TOPIC [records=1000] [keys=32] [compression=none] [size=100]
//       [key-prefix=key-] [null-keys=0] [null-values=0] [headers=0] [partition=-1] [linger-ms=5] [acks=all]
//
// Record i has the key PREFIX + (i mod keys) and a value that begins with "i ". null-keys=N and null-values=N make
// every Nth record's key or value null; headers=N adds N headers "h0".."h9" (so more than 10 repeat names), the last
// one null.
// Prints one line "produced records=N seconds=S".

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Produce {
    public static void main(String[] args) {
        Map<String, String> options = options(args, 2);
        int records = number(options, "records", 1000);
        int keys = number(options, "keys", 32);
        int size = number(options, "size", 100);
        int nullKeys = number(options, "null-keys", 0);
        int nullValues = number(options, "null-values", 0);
        int headers = number(options, "headers", 0);
        int partition = number(options, "partition", -1);
        String prefix = options.getOrDefault("key-prefix", "key-");

        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("compression.type", options.getOrDefault("compression", "none"));
        config.put("linger.ms", options.getOrDefault("linger-ms", "5"));
        config.put("acks", options.getOrDefault("acks", "all"));
        // Java makes only acks=all idempotent; saying both would be a configuration error.
        config.put("enable.idempotence", String.valueOf(options.getOrDefault("acks", "all").equals("all")));

        AtomicReference<Exception> failure = new AtomicReference<>();
        long start = System.nanoTime();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < records; i++) {
                byte[] key = every(nullKeys, i) ? null : utf8(prefix + i % keys);
                byte[] value = every(nullValues, i) ? null : value(i, size);
                var record = new ProducerRecord<>(args[1], partition < 0 ? null : partition, key, value);
                for (int h = 0; h < headers; h++) {
                    record.headers().add("h" + h % 10, h == headers - 1 ? null : utf8("value " + h + " of " + i));
                }
                producer.send(record, (metadata, error) -> {
                    if (error != null) {
                        failure.compareAndSet(null, error);
                    }
                });
            }
        }
        if (failure.get() != null) {
            System.err.println("Produce: " + failure.get());
            System.exit(1);
        }
        System.out.printf("produced records=%d seconds=%.3f%n", records, (System.nanoTime() - start) / 1e9);
    }

    static boolean every(int n, int i) {
        return n > 0 && i % n == n - 1;
    }

    static byte[] value(int i, int size) {
        StringBuilder text = new StringBuilder(size + 16).append(i).append(' ');
        while (text.length() < size) {
            text.append((char) ('a' + (i * 31 + text.length() * 7) % 26));
        }
        text.setLength(size);
        return utf8(text.toString());
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static int number(Map<String, String> options, String name, int otherwise) {
        String value = options.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    static Map<String, String> options(String[] args, int first) {
        if (args.length < first) {
            System.err.println("usage: Produce BROKERS TOPIC [NAME=VALUE]...");
            System.exit(64);
        }
        Map<String, String> options = new HashMap<>();
        for (int i = first; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair.length == 2 ? pair[1] : "");
        }
        return options;
    }
}
