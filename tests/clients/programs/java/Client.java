import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java clients in the scenarios of common.py: written for what 2.8 has, run with each version's jars. */
public final class Client {
    private static final int RECORDS = 300;
    private static final int KEYS = 200;
    private static final int LARGE = 3_000_000;
    private static final long FIRST_TIME = 1_700_000_000_000L;

    private interface Scenario {
        void run() throws Exception;
    }

    private final String bootstrap;
    private final String prefix;

    private Client(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "scenarios":
                new Client(words[1], words[2]).scenarios();
                break;
            case "member":
                member(words[1], words[2], words[3], words[4], words[5]);
                break;
            case "copy":
                copy(words[1], words[2], words[3], words[4], words[5]);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
        System.exit(0);
    }

    private void scenarios() {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        for (String codec : Arrays.asList("none", "gzip", "snappy", "lz4", "zstd")) {
            scenarios.put("stored as " + codec, () -> stored(codec));
        }
        scenarios.put("shapes", this::shapes);
        scenarios.put("keys", this::keys);
        scenarios.put("large", this::large);
        scenarios.put("empty", this::empty);
        scenarios.put("seek by time", this::seekByTime);
        scenarios.put("commits", this::commits);
        scenarios.put("regex", this::regex);
        scenarios.put("admin", this::admin);
        scenarios.put("settings", this::settings);
        scenarios.forEach((name, scenario) -> {
            try {
                scenario.run();
                say("ok " + name);
            } catch (Exception | AssertionError error) {
                error.printStackTrace();
                say("FAILED " + name + ": " + error.toString().replace('\n', ' '));
            }
        });
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void equal(Object found, Object expected, String what) {
        if (!found.equals(expected)) {
            throw new AssertionError(what + ": found " + shorten(found) + ", expected " + shorten(expected));
        }
    }

    /** Kafka makes, grows, changes and deletes topics by and by. */
    private static void eventually(Callable<Boolean> holds, String what) throws Exception {
        for (int left = 100; !holds.call(); left--) {
            if (left == 0) {
                throw new AssertionError("never: " + what);
            }
            Thread.sleep(100);
        }
    }

    private static String shorten(Object thing) {
        String text = thing.toString();
        return text.length() <= 200 ? text : text.substring(0, 150) + "... (" + text.length() + " characters)";
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(UTF_8);
    }

    /** Bytes as text that shows each of them. */
    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, java.nio.charset.StandardCharsets.ISO_8859_1);
    }

    private static String value(int number) {
        StringBuilder text = new StringBuilder();
        for (int time = 0; time < number % 20 + 4; time++) {
            text.append("record ").append(number).append(' ');
        }
        return text.toString();
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String... settings) {
        Properties properties = properties(bootstrap, settings);
        properties.putIfAbsent("linger.ms", "20");
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String... settings) {
        Properties properties = properties(bootstrap, settings);
        properties.put("enable.auto.commit", properties.getOrDefault("enable.auto.commit", "false"));
        properties.put("auto.offset.reset", "earliest");
        properties.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Properties properties(String bootstrap, String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int at = 0; at < settings.length; at += 2) {
            properties.put(settings[at], settings[at + 1]);
        }
        return properties;
    }

    private String topic(String name) {
        return prefix + "-" + name;
    }

    private TopicPartition only(String name) {
        return new TopicPartition(topic(name), 0);
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records) throws Exception {
        List<Future<?>> sent = new ArrayList<>();
        for (ProducerRecord<byte[], byte[]> record : records) {
            sent.add(producer.send(record));
        }
        for (Future<?> one : sent) {
            one.get();
        }
        producer.close();
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (records.size() < count && System.nanoTime() < deadline) {
            consumer.poll(Duration.ofMillis(300)).forEach(records::add);
        }
        if (records.size() < count) {
            throw new AssertionError(records.size() + " of " + count + " records within 20 s");
        }
        return records;
    }

    private List<ConsumerRecord<byte[], byte[]>> read(String name, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            consumer.assign(Collections.singletonList(only(name)));
            consumer.seekToBeginning(consumer.assignment());
            List<ConsumerRecord<byte[], byte[]>> records = take(consumer, count);
            equal(records.size(), count, "records");
            return records;
        }
    }

    private void stored(String codec) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < RECORDS; number++) {
            records.add(new ProducerRecord<>(topic("stored-" + codec), 0, bytes("k" + number), bytes(value(number))));
            expected.add("k" + number + "=" + value(number));
        }
        send(producer(bootstrap, "compression.type", codec), records);
        List<String> found = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : read("stored-" + codec, RECORDS)) {
            found.add(text(record.key()) + "=" + text(record.value()));
        }
        equal(found, expected, "records");
    }

    private void shapes() throws Exception {
        byte[] all = new byte[256];
        for (int at = 0; at < all.length; at++) {
            all[at] = (byte) at;
        }
        byte[][][] shapes = {
            {bytes("key"), bytes("value"), bytes("name"), bytes("1"), bytes("name"), bytes("2")},
            {bytes(""), bytes("")},
            {null, bytes("no key")},
            {bytes("gone"), null},
            {bytes("schlüssel"), all, bytes("größe"), bytes("高")},
            {bytes("last"), bytes("with an empty header"), bytes("empty"), bytes("")},
        };
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (byte[][] shape : shapes) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic("shapes"), 0, shape[0], shape[1]);
            for (int at = 2; at < shape.length; at += 2) {
                record.headers().add(new String(shape[at], UTF_8), shape[at + 1]);
            }
            records.add(record);
        }
        send(producer(bootstrap), records);
        List<String> found = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : read("shapes", shapes.length)) {
            List<String> parts = new ArrayList<>(Arrays.asList(text(record.key()), text(record.value())));
            for (Header header : record.headers()) {
                parts.addAll(Arrays.asList(text(bytes(header.key())), text(header.value())));
            }
            found.add(parts.toString());
        }
        List<String> expected = new ArrayList<>();
        for (byte[][] shape : shapes) {
            expected.add(Arrays.stream(shape).map(Client::text).collect(Collectors.toList()).toString());
        }
        equal(found, expected, "records");
    }

    private void keys() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = 0; number < KEYS; number++) {
            records.add(new ProducerRecord<>(topic("keys"), bytes("key-" + number), bytes("" + number)));
        }
        send(producer(bootstrap), records);
    }

    private void large() throws Exception {
        byte[] value = new byte[LARGE];
        Arrays.fill(value, (byte) 'x');
        send(producer(bootstrap, "max.request.size", "4000000"), Collections.singletonList(new ProducerRecord<>(topic("large"), 0, null, value)));
        equal(read("large", 1).get(0).value().length, LARGE, "bytes");
    }

    private void empty() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            List<TopicPartition> parts = Collections.singletonList(only("empty"));
            consumer.assign(parts);
            consumer.seekToBeginning(parts);
            equal(consumer.poll(Duration.ofMillis(700)).count(), 0, "records");
            equal(consumer.beginningOffsets(parts), Collections.singletonMap(only("empty"), 0L), "the beginning");
            equal(consumer.endOffsets(parts), Collections.singletonMap(only("empty"), 0L), "the end");
        }
    }

    private void seekByTime() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            records.add(new ProducerRecord<>(topic("times"), 0, FIRST_TIME + 1_000L * number, null, bytes("" + number)));
        }
        send(producer(bootstrap), records);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            TopicPartition part = only("times");
            consumer.assign(Collections.singletonList(part));
            long offset = consumer.offsetsForTimes(Collections.singletonMap(part, FIRST_TIME + 50_500L)).get(part).offset();
            equal(offset, 51L, "offset by time");
            consumer.seek(part, offset);
            equal(text(take(consumer, 1).get(0).value()), "51", "the record there");
        }
    }

    private void commits() throws Exception {
        goesOnAt(0, 40);
        goesOnAt(40, 5);
        try (Admin admin = Admin.create(properties(bootstrap))) {
            Map<TopicPartition, OffsetAndMetadata> reset = Collections.singletonMap(only("times"), new OffsetAndMetadata(10));
            admin.alterConsumerGroupOffsets(topic("commits"), reset).all().get();
            equal(admin.listConsumerGroupOffsets(topic("commits")).partitionsToOffsetAndMetadata().get().get(only("times")).offset(), 10L, "what was set");
        }
        goesOnAt(10, 1);
    }

    private void goesOnAt(long expected, int count) {
        String records = String.valueOf(count);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "group.id", topic("commits"), "max.poll.records", records)) {
            consumer.subscribe(Collections.singletonList(topic("times")));
            List<ConsumerRecord<byte[], byte[]>> taken = take(consumer, count);
            equal(taken.get(0).offset(), expected, "where the group goes on");
            consumer.commitSync(Collections.singletonMap(only("times"), new OffsetAndMetadata(expected + count, "so far")));
        }
    }

    private void regex() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "group.id", topic("regex"))) {
            consumer.subscribe(Pattern.compile(Pattern.quote(prefix) + "-regex-.*"));
            List<String> found = take(consumer, 2).stream().map(record -> text(record.value())).sorted().collect(Collectors.toList());
            equal(found, Arrays.asList("regex-a", "regex-b"), "records");
        }
    }

    private void admin() throws Exception {
        try (Admin admin = Admin.create(properties(bootstrap))) {
            String made = topic("made");
            NewTopic topic = new NewTopic(made, 3, (short) 1).configs(Collections.singletonMap("retention.ms", "60000"));
            admin.createTopics(Collections.singletonList(topic)).all().get();
            eventually(() -> admin.listTopics().names().get().contains(made), "the topic is listed");
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
            String retention = admin.describeConfigs(Collections.singletonList(resource)).all().get().get(resource).get("retention.ms").value();
            equal(retention, "60000", "retention.ms");
            admin.createPartitions(Collections.singletonMap(made, NewPartitions.increaseTo(5))).all().get();
            eventually(() -> describe(admin, made).partitions().size() == 5, "the topic grows");
            admin.deleteTopics(Collections.singletonList(made)).all().get();
            eventually(() -> !admin.listTopics().names().get().contains(made), "the topic goes");
            String group = topic("commits");
            equal(groups(admin).contains(group), true, "the group is listed");
            String state = admin.describeConsumerGroups(Collections.singletonList(group)).all().get().get(group).state().toString();
            equal(state, "Empty", "state of the group");
            admin.deleteConsumerGroups(Collections.singletonList(group)).all().get();
            equal(groups(admin).contains(group), false, "the group is listed after deletion");
            equal(admin.describeCluster().nodes().get().size(), 1, "nodes");
        }
    }

    private void settings() throws Exception {
        try (Admin admin = Admin.create(properties(bootstrap)); KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic("times"));
            AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "9000000000000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Collections.singletonMap(resource, Collections.singletonList(set))).all().get();
            eventually(() -> admin.describeConfigs(Collections.singletonList(resource)).all().get().get(resource)
                    .get("retention.ms").value().equals("9000000000000"), "retention.ms is as set");
            TopicPartition part = only("times");
            admin.deleteRecords(Collections.singletonMap(part, RecordsToDelete.beforeOffset(20))).all().get();
            equal(consumer.beginningOffsets(Collections.singletonList(part)).get(part), 20L, "the beginning");
        }
    }

    /** What the result's method was called until 3.1 is gone in 4.0. */
    private static TopicDescription describe(Admin admin, String topic) throws Exception {
        Object result = admin.describeTopics(Collections.singletonList(topic));
        boolean isOld = Arrays.stream(result.getClass().getMethods()).noneMatch(method -> method.getName().equals("allTopicNames"));
        KafkaFuture<?> all = (KafkaFuture<?>) result.getClass().getMethod(isOld ? "all" : "allTopicNames").invoke(result);
        return (TopicDescription) ((Map<?, ?>) all.get()).get(topic);
    }

    private static List<String> groups(Admin admin) throws Exception {
        return admin.listConsumerGroups().all().get().stream().map(group -> group.groupId()).collect(Collectors.toList());
    }

    private static AtomicBoolean untilTerminated() {
        AtomicBoolean ended = new AtomicBoolean();
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ended.set(true);
            try {
                // A hook that returns ends the process; the consumer leaves first.
                main.join(15_000);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0);
        }));
        return ended;
    }

    private static void member(String bootstrap, String group, String topic, String instance, String session) {
        AtomicBoolean ended = untilTerminated();
        Map<String, String> settings = new HashMap<>();
        settings.put("group.id", group);
        settings.put("session.timeout.ms", session);
        settings.put("heartbeat.interval.ms", "500");
        settings.put("enable.auto.commit", "true");
        settings.put("auto.commit.interval.ms", "500");
        if (!instance.equals("-")) {
            settings.put("group.instance.id", instance);
        }
        String[] words = settings.entrySet().stream().flatMap(entry -> Arrays.asList(entry.getKey(), entry.getValue()).stream()).toArray(String[]::new);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, words)) {
            consumer.subscribe(Collections.singletonList(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    say("assigned -");
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    say("assigned " + consumer.assignment().stream().map(part -> "" + part.partition()).collect(Collectors.joining(",")));
                }
            });
            while (!ended.get()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    say("record " + record.partition() + " " + record.offset() + " " + text(record.value()));
                }
            }
        }
    }

    private static void copy(String bootstrap, String group, String source, String target, String transaction) throws Exception {
        AtomicBoolean ended = untilTerminated();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "group.id", group, "group.instance.id", "copier",
                "session.timeout.ms", "15000", "isolation.level", "read_committed", "max.poll.records", "20");
                KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "transactional.id", transaction, "linger.ms", "0")) {
            producer.initTransactions();
            consumer.subscribe(Collections.singletonList(source));
            while (!ended.get()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
                    positions.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                Thread.sleep(50);
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                producer.commitTransaction();
                say("committed " + records.count());
            }
        }
    }
}
