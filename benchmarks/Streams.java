import java.nio.ByteBuffer;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Keeps the newest value of each key with Kafka Streams: a read of the stored sequence number, a comparison, a put.
 *
 * <p>Arguments: bootstrap servers, topic, events, threads, state directory, application id. Each value begins with its
 * sequence number (8 bytes, big-endian). Prints the seconds from the first event to the last one, and ends.
 */
public final class Streams {
    private static final String STORE = "entries";

    public static void main(String[] arguments) throws Exception {
        long events = Long.parseLong(arguments[2]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[5]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");

        AtomicLong began = new AtomicLong();
        AtomicLong seen = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        Topology topology = new Topology();
        topology.addSource("events", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), arguments[1]);
        topology.addProcessor("newest", () -> new Newest(began, seen, events, done), "events");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.ByteArray()),
                "newest");

        KafkaStreams streams = new KafkaStreams(topology, settings);
        streams.setUncaughtExceptionHandler(
                error -> {
                    error.printStackTrace();
                    System.exit(1);
                    return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                });
        streams.start();
        done.await();
        double seconds = (System.nanoTime() - began.get()) / 1e9;
        streams.close();
        System.out.println(seconds);
    }

    private static final class Newest implements Processor<byte[], byte[], Void, Void> {
        private final AtomicLong began;
        private final AtomicLong seen;
        private final long events;
        private final CountDownLatch done;
        private KeyValueStore<byte[], byte[]> entries;

        Newest(AtomicLong began, AtomicLong seen, long events, CountDownLatch done) {
            this.began = began;
            this.seen = seen;
            this.events = events;
            this.done = done;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            entries = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            long number = seen.incrementAndGet();
            if (number == 1) {
                began.set(System.nanoTime());
            }
            byte[] old = entries.get(record.key());
            if (old == null || sequence(old) < sequence(record.value())) {
                entries.put(record.key(), record.value());
            }
            if (number == events) {
                done.countDown();
            }
        }

        private static long sequence(byte[] value) {
            return ByteBuffer.wrap(value).getLong();
        }
    }
}
