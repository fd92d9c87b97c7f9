// Makes logs with committed, aborted and open transactions, which keylane can read but not write.
//
//   scripts/kafka run tests/peers/Txn.java BROKERS TOPIC ID STEP...
//
// Steps run in order; each transaction writes its records to every partition of the list, keys "k0".."k3" in turn:
//   commit:N[:P,P..]  abort:N[:P,P..]     a transaction of N records a partition (default partition 0), then its marker
//   plain:N[:P,P..]                       N records a partition outside of any transaction
//   open:N[:P,P..]                        begins, writes, flushes and halts the process without a marker; must be last
//   hold:N:P,P..:SECONDS                  as commit, but the transaction stays open for SECONDS before it is committed
// Values are "STEP-INDEX STEP-NAME RECORD". After each step prints "STEP partition=P end=OFFSET": the offset after the
// step's last record there; a marker, if any, takes that offset.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Txn {
    public static void main(String[] args) throws Exception {
        if (args.length < 4) {
            System.err.println("usage: Txn BROKERS TOPIC TRANSACTIONAL-ID STEP...");
            System.exit(64);
        }
        try (var transactional = producer(args[0], args[2]); var plain = producer(args[0], null)) {
            transactional.initTransactions();
            for (int step = 3; step < args.length; step++) {
                String[] parts = args[step].split(":");
                int records = Integer.parseInt(parts[1]);
                String partitions = parts.length > 2 ? parts[2] : "0";
                boolean inTransaction = !parts[0].equals("plain");
                if (inTransaction) {
                    transactional.beginTransaction();
                }
                write(inTransaction ? transactional : plain, args[1], step - 3, parts[0], records, partitions);
                switch (parts[0]) {
                    case "commit" -> transactional.commitTransaction();
                    case "abort" -> transactional.abortTransaction();
                    case "plain" -> { }
                    case "hold" -> {
                        Thread.sleep((long) (Double.parseDouble(parts[3]) * 1000));
                        transactional.commitTransaction();
                    }
                    case "open" -> Runtime.getRuntime().halt(0);
                    default -> throw new IllegalArgumentException("unknown step " + parts[0]);
                }
            }
        }
    }

    static KafkaProducer<byte[], byte[]> producer(String brokers, String id) {
        Properties config = new Properties();
        config.put("bootstrap.servers", brokers);
        config.put("transaction.timeout.ms", "600000");
        config.put("compression.type", "lz4");
        if (id != null) {
            config.put("transactional.id", id);
        }
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void write(KafkaProducer<byte[], byte[]> to, String topic, int index, String step, int records,
            String partitions) throws Exception {
        for (String partition : partitions.split(",")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < records; i++) {
                byte[] key = ("k" + i % 4).getBytes(StandardCharsets.UTF_8);
                byte[] value = (index + " " + step + " " + i).getBytes(StandardCharsets.UTF_8);
                sent.add(to.send(new ProducerRecord<>(topic, Integer.valueOf(partition), key, value)));
            }
            // Without the flush an aborted record may never leave the client.
            to.flush();
            long end = records == 0 ? -1 : sent.get(records - 1).get().offset() + 1;
            System.out.println(step + " partition=" + partition + " end=" + end);
        }
    }
}
