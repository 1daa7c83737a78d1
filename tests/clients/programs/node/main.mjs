// kafkajs in the scenarios of common.py.

import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(import.meta.url);
const { Kafka, CompressionCodecs, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs');
const snappy = require('kafkajs-snappy');
const lz4 = require('lz4js');
const zstd = require('@bokuweb/zstd-wasm');

const RECORDS = 300;
const KEYS = 200;
const LARGE = 3_000_000;
const FIRST_TIME = 1_700_000_000_000;
const SOUGHT = FIRST_TIME + 50_500;

CompressionCodecs[CompressionTypes.Snappy] = snappy;
/** Kafka takes frames of independent blocks only. lz4js does not say so of its own, and these have just one block: the flag
 * is set, and the byte that checks the descriptor goes with it. */
function independent(frame) {
  equal([...frame.subarray(4, 6)], [0x40, 0x70], 'the descriptor that lz4js writes');
  frame[4] = 0x60;
  frame[6] = 0x73;
  return frame;
}

CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => independent(Buffer.from(lz4.compress(encoder.buffer))),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

const all = Buffer.from(Array.from({ length: 256 }, (_, at) => at));
const SHAPES = [
  ['key', 'value', { name: ['1', '2'] }],
  ['', '', {}],
  [null, 'no key', {}],
  ['gone', null, {}],
  ['schlüssel', all, { größe: '高' }],
  ['last', 'with an empty header', { empty: '' }],
];

const say = (line) => process.stdout.write(`${line}\n`);
const value = (number) => `record ${number} `.repeat((number % 20) + 4);
const text = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('latin1'));

function equal(found, expected, what) {
  const [left, right] = [JSON.stringify(found), JSON.stringify(expected)];
  if (left !== right) throw new Error(`${what}: found ${left.slice(0, 200)}, expected ${right.slice(0, 200)}`);
}

const kafkaAt = (bootstrap) => new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING });

async function send(kafka, topic, messages, compression = CompressionTypes.None) {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages, compression, acks: -1 });
  await producer.disconnect();
}

/** Reads so many messages in a group; `take` says what to do with the consumer once it runs, and `done` before it goes. */
async function read(kafka, groupId, topic, count, { started, done } = {}) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100, maxBytesPerPartition: 4_000_000 });
  await consumer.connect();
  await consumer.subscribe(topic instanceof RegExp ? { topic, fromBeginning: true } : { topics: [topic], fromBeginning: true });
  const messages = [];
  const enough = new Promise((resolve) => {
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (messages.length < count) messages.push(message);
        if (messages.length === count) resolve();
      },
    });
  });
  started?.(consumer);
  await Promise.race([enough, sleep(20_000, undefined, { ref: false })]);
  await done?.(consumer, messages);
  await consumer.disconnect();
  equal(messages.length, count, 'records within 20 s');
  return messages;
}

function scenarios(bootstrap, prefix) {
  const kafka = kafkaAt(bootstrap);
  const topic = (name) => `${prefix}-${name}`;
  const admin = async (use) => {
    const one = kafka.admin();
    await one.connect();
    try {
      return await use(one);
    } finally {
      await one.disconnect();
    }
  };
  const found = {};

  for (const [codec, compression] of Object.entries(CODECS)) {
    found[`stored as ${codec}`] = async () => {
      const name = topic(`stored-${codec}`);
      const messages = Array.from({ length: RECORDS }, (_, at) => ({ key: `k${at}`, value: value(at), partition: 0 }));
      await send(kafka, name, messages, compression);
      const back = await read(kafka, `${name}-reader`, name, RECORDS);
      equal(back.map((one) => [text(one.key), text(one.value)]), messages.map((one) => [one.key, one.value]), 'records');
    };
  }

  found.shapes = async () => {
    await send(kafka, topic('shapes'), SHAPES.map(([key, value, headers]) => ({ key, value, headers, partition: 0 })));
    const flat = (headers) =>
      Object.entries(headers).flatMap(([key, values]) => [values].flat().map((one) => [key, text(one)]));
    const back = await read(kafka, topic('shapes-reader'), topic('shapes'), SHAPES.length);
    equal(
      back.map((one) => [text(one.key), text(one.value), flat(one.headers)]),
      SHAPES.map(([key, value, headers]) => [text(key), text(value), flat(headers)]),
      'records',
    );
  };

  found.keys = () =>
    send(kafka, topic('keys'), Array.from({ length: KEYS }, (_, at) => ({ key: `key-${at}`, value: `${at}` })));

  found.large = async () => {
    await send(kafka, topic('large'), [{ value: 'x'.repeat(LARGE), partition: 0 }]);
    const [back] = await read(kafka, topic('large-reader'), topic('large'), 1);
    equal(back.value.length, LARGE, 'bytes');
  };

  found.empty = async () => {
    const consumer = kafka.consumer({ groupId: topic('empty-reader'), maxWaitTimeInMs: 100 });
    await consumer.connect();
    await consumer.subscribe({ topics: [topic('empty')], fromBeginning: true });
    let count = 0;
    await consumer.run({ eachMessage: async () => (count += 1) });
    await sleep(700);
    await consumer.disconnect();
    equal(count, 0, 'records');
    const [ends] = await admin((one) => one.fetchTopicOffsets(topic('empty')));
    equal([ends.low, ends.high], ['0', '0'], 'the ends');
  };

  found['seek by time'] = async () => {
    const messages = Array.from({ length: 100 }, (_, at) => ({
      value: `${at}`,
      timestamp: `${FIRST_TIME + at * 1_000}`,
      partition: 0,
    }));
    await send(kafka, topic('times'), messages);
    const [{ offset }] = await admin((one) => one.fetchTopicOffsetsByTimestamp(topic('times'), SOUGHT));
    equal(offset, '51', 'offset by time');
    const started = (consumer) => consumer.seek({ topic: topic('times'), partition: 0, offset });
    const [first] = await read(kafka, topic('times-reader'), topic('times'), 1, { started });
    equal(text(first.value), '51', 'the record there');
  };

  found.commits = async () => {
    // Its administrator's own way to set an offset joins the group for a moment, and now and then does not leave it.
    const goesOnAt = async (expected, count, commit = expected + count) => {
      const done = async (consumer, messages) => {
        equal(Number(messages[0]?.offset), expected, 'where the group goes on');
        await consumer.commitOffsets([{ topic: topic('times'), partition: 0, offset: `${commit}`, metadata: 'so far' }]);
      };
      await read(kafka, topic('commits'), topic('times'), count, { done });
    };
    await goesOnAt(0, 40);
    await goesOnAt(40, 5, 10);
    await admin(async (one) => {
      const [set] = await one.fetchOffsets({ groupId: topic('commits'), topics: [topic('times')] });
      equal(set.partitions[0].offset, '10', 'what was set');
    });
    await goesOnAt(10, 1);
  };

  found.regex = async () => {
    const pattern = new RegExp(`^${prefix.replaceAll('.', '\\.')}-regex-.*`);
    const back = await read(kafka, topic('regex'), pattern, 2);
    equal(back.map((one) => text(one.value)).sort(), ['regex-a', 'regex-b'], 'records');
  };

  found.admin = () =>
    admin(async (one) => {
      const made = topic('made');
      const group = topic('commits');
      const configEntries = [{ name: 'retention.ms', value: '60000' }];
      await one.createTopics({ topics: [{ topic: made, numPartitions: 3, replicationFactor: 1, configEntries }] });
      const resources = [{ type: ConfigResourceTypes.TOPIC, name: made, configNames: ['retention.ms'] }];
      const described = await one.describeConfigs({ resources, includeSynonyms: false });
      equal(described.resources[0].configEntries[0].configValue, '60000', 'retention.ms');
      await one.createPartitions({ topicPartitions: [{ topic: made, count: 5 }] });
      await eventually(async () => (await one.fetchTopicMetadata({ topics: [made] })).topics[0].partitions.length === 5, 'it grows');
      await one.deleteTopics({ topics: [made] });
      await eventually(async () => !(await one.listTopics()).includes(made), 'the topic goes');
      const listed = async () => (await one.listGroups()).groups.some((found) => found.groupId === group);
      equal(await listed(), true, 'the group is listed');
      equal((await one.describeGroups([group])).groups[0].state, 'Empty', 'state of the group');
      await one.deleteGroups([group]);
      equal(await listed(), false, 'the group is listed after deletion');
    });

  found.settings = () =>
    admin(async (one) => {
      const name = topic('times');
      const configEntries = [{ name: 'retention.ms', value: '9000000000000' }];
      await one.alterConfigs({ validateOnly: false, resources: [{ type: ConfigResourceTypes.TOPIC, name, configEntries }] });
      const resources = [{ type: ConfigResourceTypes.TOPIC, name, configNames: ['retention.ms'] }];
      const found = async () => (await one.describeConfigs({ resources, includeSynonyms: false })).resources[0].configEntries[0];
      await eventually(async () => (await found()).configValue === '9000000000000', 'retention.ms is as set');
      await one.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '20' }] });
      const [ends] = await one.fetchTopicOffsets(name);
      equal(ends.low, '20', 'the beginning');
    });

  return found;
}

async function eventually(holds, what) {
  for (let left = 100; !(await holds()); left -= 1) {
    if (left === 0) throw new Error(`never: ${what}`);
    await sleep(100);
  }
}

async function member(bootstrap, groupId, topic, _instance, session) {
  const consumer = kafkaAt(bootstrap).consumer({
    groupId,
    sessionTimeout: Number(session),
    heartbeatInterval: 500,
    maxWaitTimeInMs: 100,
    retry: { retries: 20 },
  });
  consumer.on(consumer.events.REBALANCING, () => say('assigned -'));
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => say(`assigned ${(payload.memberAssignment[topic] ?? []).join(',') || '-'}`));
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  process.on('SIGTERM', () => consumer.disconnect().then(() => process.exit(0)));
  await consumer.run({
    autoCommitInterval: 500,
    eachMessage: async ({ partition, message }) => say(`record ${partition} ${message.offset} ${text(message.value)}`),
  });
}

async function copy(bootstrap, groupId, source, target, transactionalId) {
  const kafka = kafkaAt(bootstrap);
  const consumer = kafka.consumer({ groupId, sessionTimeout: 4_000, heartbeatInterval: 500, maxWaitTimeInMs: 100, readUncommitted: false });
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: [source], fromBeginning: true });
  process.on('SIGTERM', () => consumer.disconnect().then(() => producer.disconnect()).then(() => process.exit(0)));
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      for (let at = 0; at < batch.messages.length && isRunning() && !isStale(); at += 20) {
        const messages = batch.messages.slice(at, at + 20);
        const last = messages[messages.length - 1].offset;
        const transaction = await producer.transaction();
        const copies = messages.map((one) => ({ value: one.value, partition: batch.partition }));
        await transaction.send({ topic: target, messages: copies });
        await sleep(20);
        const partitions = [{ partition: batch.partition, offset: `${Number(last) + 1}` }];
        await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: source, partitions }] });
        await transaction.commit();
        resolveOffset(last);
        say(`committed ${messages.length}`);
        await heartbeat();
      }
    },
  });
}

const [kind, ...rest] = process.argv.slice(2);
if (kind === 'scenarios') {
  await zstd.init();
  for (const [name, run] of Object.entries(scenarios(...rest))) {
    try {
      await run();
      say(`ok ${name}`);
    } catch (error) {
      say(`FAILED ${name}: ${String(error).replaceAll('\n', ' ')}`);
    }
  }
  process.exit(0);
}
await { member, copy }[kind](...rest);
