package moldau.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Steady producers of Kafka's Java client, with the commands and the measurement of `failover_producers.py`. */
public final class FailoverProducers {
    private static final byte[] VALUE = new byte[100];
    private static final int STEADY_RECORDS = 50;
    private static final double TIMEOUT_S = 90;
    private static final double LATE_S_MAX = 0.02;

    private FailoverProducers() {
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    /** The acknowledgements of one producer. */
    private static final class PauseMeter {
        private final int[] counts;
        private final double[] latest;
        private final double[] newestSent;
        private double pause;
        private final List<String> failures = new ArrayList<>();

        PauseMeter(int partitions) {
            counts = new int[partitions];
            latest = new double[partitions];
            newestSent = new double[partitions];
        }

        synchronized void acknowledged(int partition, double sentAt) {
            double now = now();
            if (latest[partition] > 0) {
                pause = Math.max(pause, now - latest[partition]);
            }
            latest[partition] = now;
            newestSent[partition] = Math.max(newestSent[partition], sentAt);
            counts[partition]++;
        }

        synchronized void failed(Exception error) {
            failures.add(error.toString());
        }

        synchronized boolean isSteady() {
            for (int count : counts) {
                if (count < STEADY_RECORDS) {
                    return false;
                }
            }
            return true;
        }

        synchronized void mark() {
            pause = 0;
        }

        synchronized boolean hasResumed(double since) {
            for (double sentAt : newestSent) {
                if (sentAt <= since) {
                    return false;
                }
            }
            return true;
        }

        synchronized String describe() {
            double longest = pause;
            for (double at : latest) {
                longest = Math.max(longest, now() - at);
            }
            return String.format(Locale.ROOT, "%.4f,%d", longest, failures.size());
        }

        synchronized String firstFailure() {
            return failures.isEmpty() ? null : failures.get(0);
        }
    }

    /** One producer and the thread that sends to it: `topic,partitions,idempotent,linger_ms`. */
    private static final class SteadyProducer implements Runnable {
        private final String topic;
        private final int partitions;
        private final double intervalS;
        private final KafkaProducer<byte[], byte[]> producer;
        private final Thread thread = new Thread(this);
        final PauseMeter meter;
        private volatile boolean isStopped;

        SteadyProducer(String bootstrap, double intervalS, String settings) {
            String[] words = settings.split(",");
            topic = words[0];
            partitions = Integer.parseInt(words[1]);
            this.intervalS = intervalS;
            meter = new PauseMeter(partitions);
            producer = new KafkaProducer<>(
                Map.of(
                    "bootstrap.servers", bootstrap,
                    "enable.idempotence", words[2].equals("1"),
                    "acks", "all",
                    "linger.ms", words[3]),
                new ByteArraySerializer(), new ByteArraySerializer());
            thread.start();
        }

        @Override
        public void run() {
            double next = now();
            for (int number = 0; !isStopped; number++) {
                int partition = number % partitions;
                double sentAt = now();
                producer.send(new ProducerRecord<>(topic, partition, null, VALUE), (metadata, error) -> {
                    if (error == null) {
                        meter.acknowledged(partition, sentAt);
                    } else {
                        meter.failed(error);
                    }
                });
                next = Math.max(next + intervalS, now() - LATE_S_MAX);
                LockSupport.parkNanos((long) (Math.max(0, next - now()) * 1e9));
            }
        }

        void stop() throws InterruptedException {
            isStopped = true;
            thread.join();
            producer.close();
        }
    }

    private static boolean waitUntil(BooleanSupplier condition) throws InterruptedException {
        double deadline = now() + TIMEOUT_S;
        while (!condition.getAsBoolean()) {
            if (now() > deadline) {
                return false;
            }
            Thread.sleep(5);
        }
        return true;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        List<SteadyProducer> producers = new ArrayList<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> {
                    for (int index = 3; index < words.length; index++) {
                        producers.add(new SteadyProducer(words[1], Double.parseDouble(words[2]), words[index]));
                    }
                    boolean isSteady = waitUntil(() -> producers.stream().allMatch(each -> each.meter.isSteady()));
                    System.out.println(isSteady ? "steady" : "failed: not steady");
                }
                case "mark" -> {
                    producers.forEach(each -> each.meter.mark());
                    System.out.println("marked");
                }
                case "report" -> {
                    double since = now();
                    waitUntil(() -> producers.stream().allMatch(each -> each.meter.hasResumed(since)));
                    for (SteadyProducer each : producers) {
                        if (each.meter.firstFailure() != null) {
                            System.err.println(each.meter.firstFailure());
                        }
                    }
                    System.out.println(
                        producers.stream().map(each -> each.meter.describe()).collect(Collectors.joining(" ")));
                }
                case "stop" -> {
                    for (SteadyProducer each : producers) {
                        each.stop();
                    }
                    producers.clear();
                    System.out.println("stopped");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }
}
