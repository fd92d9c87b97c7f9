// A member of a consumer group with Kafka's own client, to share a group with keylane: mixed assignors, rolling moves
// between clients, static membership, the classic and the new protocol.
//
//   scripts/kafka run tests/peers/Member.java BROKERS GROUP TOPIC[,TOPIC..] [assignors=cooperative-sticky]
//       [seconds=0] [instance-id=] [protocol=classic] [session-ms=10000] [max-poll-records=500] [work-ms=0] [quiet=0]
//
// assignors: any of range, roundrobin, sticky, cooperative-sticky, by commas. seconds=0: until SIGTERM, on which it
// stops polling, commits and leaves the group. Commits synchronously after each poll. Prints, flushed line by line:
//   assigned TOPIC-P ...      revoked TOPIC-P ...      lost TOPIC-P ...
//   PARTITION OFFSET KEY      for each record (TOPIC first when several; "-" for a null key); quiet=1 leaves these out
//   done records=N

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Member implements ConsumerRebalanceListener {
    static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    static volatile boolean stopping;

    public static void main(String[] args) throws Exception {
        if (args.length < 3) {
            System.err.println("usage: Member BROKERS GROUP TOPIC[,TOPIC..] [NAME=VALUE]...");
            System.exit(64);
        }
        Map<String, String> options = Arrays.stream(args).skip(3).map(pair -> pair.split("=", 2))
                .collect(Collectors.toMap(pair -> pair[0], pair -> pair.length == 2 ? pair[1] : ""));
        List<String> topics = List.of(args[2].split(","));
        double seconds = Double.parseDouble(options.getOrDefault("seconds", "0"));
        long workMs = Long.parseLong(options.getOrDefault("work-ms", "0"));
        boolean quiet = options.getOrDefault("quiet", "0").equals("1");

        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaConsumer<>(config(args, options), bytes, bytes);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            consumer.wakeup();
            try {
                main.join(20_000);
                // A graceful end: without this a JVM that got SIGTERM exits 143.
                Runtime.getRuntime().halt(main.isAlive() ? 143 : 0);
            } catch (InterruptedException ignored) {
                // The process ends either way.
            }
        }));

        long end = seconds == 0 ? Long.MAX_VALUE : System.nanoTime() + (long) (seconds * 1e9);
        long count = 0;
        consumer.subscribe(topics, new Member());
        try {
            while (!stopping && System.nanoTime() < end) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    if (workMs > 0) {
                        Thread.sleep(workMs);
                    }
                    count++;
                    if (!quiet) {
                        say((topics.size() > 1 ? record.topic() + " " : "") + line(record));
                    }
                }
                commit(consumer);
            }
        } catch (WakeupException stop) {
            // The shutdown hook's way out of a poll; close() commits nothing, so do it first.
        } finally {
            try {
                commit(consumer);
            } catch (WakeupException late) {
                commit(consumer);
            }
            consumer.close();
        }
        say("done records=" + count);
    }

    static void commit(KafkaConsumer<byte[], byte[]> consumer) {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException later) {
            // Allowed in a cooperative rebalance: what is kept is committed after the next poll.
        }
    }

    static Properties config(String[] args, Map<String, String> options) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("max.poll.records", options.getOrDefault("max-poll-records", "500"));
        if (options.getOrDefault("protocol", "classic").equals("consumer")) {
            config.put("group.protocol", "consumer");
        } else {
            config.put("session.timeout.ms", options.getOrDefault("session-ms", "10000"));
            config.put("heartbeat.interval.ms", "300");
            config.put("partition.assignment.strategy",
                    Arrays.stream(options.getOrDefault("assignors", "cooperative-sticky").split(","))
                            .map(name -> ASSIGNORS.getOrDefault(name, name)).collect(Collectors.joining(",")));
        }
        if (!options.getOrDefault("instance-id", "").isEmpty()) {
            config.put("group.instance.id", options.get("instance-id"));
        }
        return config;
    }

    static String line(ConsumerRecord<byte[], byte[]> record) {
        String key = record.key() == null ? "-" : new String(record.key(), StandardCharsets.UTF_8);
        return record.partition() + " " + record.offset() + " " + key;
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void rebalance(String what, Collection<TopicPartition> partitions) {
        String list = partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(" "));
        say((what + " " + list).trim());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        rebalance("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        rebalance("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        rebalance("lost", partitions);
    }
}
