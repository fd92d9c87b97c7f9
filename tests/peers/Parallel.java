// Confluent's Parallel Consumer on the pool's work: the Java library that does what keylane pool does.
//
//   scripts/kafka run --with io.confluent.parallelconsumer:parallel-consumer-core:0.5.3.2 tests/peers/Parallel.java \
//       BROKERS TOPIC GROUP RECORDS [workers=8] [delay-ms=0] [order=KEY]
//
// order: KEY, PARTITION or UNORDERED. Stops after RECORDS records; prints "done: records=N seconds=S rate=R/s", seconds
// from the first record.

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Parallel {
    public static void main(String[] args) throws Exception {
        if (args.length < 4) {
            System.err.println("usage: Parallel BROKERS TOPIC GROUP RECORDS [NAME=VALUE]...");
            System.exit(64);
        }
        Map<String, String> options = Arrays.stream(args).skip(4).map(pair -> pair.split("=", 2))
                .collect(Collectors.toMap(pair -> pair[0], pair -> pair[1]));
        long records = Long.parseLong(args[3]);
        long delayMs = Long.parseLong(options.getOrDefault("delay-ms", "0"));

        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[2]);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("max.poll.records", "10000");
        var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var processor = ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .ordering(ProcessingOrder.valueOf(options.getOrDefault("order", "KEY")))
                        .maxConcurrency(Integer.parseInt(options.getOrDefault("workers", "8")))
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .consumer(consumer)
                        .build());

        AtomicLong finished = new AtomicLong();
        AtomicLong firstNs = new AtomicLong();
        var end = new CountDownLatch(1);
        processor.subscribe(List.of(args[1]));
        processor.poll(context -> {
            firstNs.compareAndSet(0, System.nanoTime());
            if (delayMs > 0) {
                try {
                    Thread.sleep(delayMs);
                } catch (InterruptedException stop) {
                    Thread.currentThread().interrupt();
                }
            }
            if (finished.incrementAndGet() == records) {
                end.countDown();
            }
        });
        end.await();
        double seconds = (System.nanoTime() - firstNs.get()) / 1e9;
        processor.closeDontDrainFirst();
        System.out.printf("done: records=%d seconds=%.3f rate=%.0f/s%n", records, seconds, records / seconds);
        System.exit(0);
    }
}
