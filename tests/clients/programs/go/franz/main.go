// franz-go in the scenarios of common.py.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	. "highwater/clients/common"
)

func main() {
	words := os.Args
	switch words[1] {
	case "scenarios":
		scenarios(words[2], words[3])
	case "member":
		member(words[2], words[3], words[4], words[5], words[6])
	case "copy":
		copyRecords(words[2], words[3], words[4], words[5], words[6])
	}
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	given := []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(100 * time.Millisecond)}
	return Got(kgo.NewClient(append(given, options...)...))
}

func seconds(count int) context.Context {
	limit, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Duration(count)*time.Second, cancel)
	return limit
}

func take(one *kgo.Client, count int) []*kgo.Record {
	var records []*kgo.Record
	limit := seconds(20)
	for len(records) < count {
		fetches := one.PollRecords(limit, count-len(records))
		for _, failed := range fetches.Errors() {
			panic(Failed{fmt.Sprintf("%d of %d records: %v", len(records), count, failed.Err)})
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

func read(bootstrap, topic string, count int) []*kgo.Record {
	one := client(bootstrap, kgo.ConsumeTopics(topic))
	defer one.Close()
	return take(one, count)
}

func send(one *kgo.Client, records ...*kgo.Record) {
	defer one.Close()
	Must(one.ProduceSync(seconds(20), records...).FirstErr())
}

func scenarios(bootstrap, prefix string) {
	topic := func(name string) string { return prefix + "-" + name }
	manual := kgo.RecordPartitioner(kgo.ManualPartitioner())
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	var all []Scenario
	add := func(name string, run func()) { all = append(all, Scenario{name, run}) }

	for _, codec := range Codecs {
		add("stored as "+codec, func() {
			var records []*kgo.Record
			for number := range Records {
				records = append(records, &kgo.Record{Topic: topic("stored-" + codec), Key: Key(number), Value: Value(number)})
			}
			send(client(bootstrap, manual, kgo.ProducerBatchCompression(codecs[codec])), records...)
			for number, record := range read(bootstrap, topic("stored-"+codec), Records) {
				Equal(string(record.Key), string(Key(number)), "key")
				Equal(string(record.Value), string(Value(number)), "value")
			}
		})
	}
	add("shapes", func() {
		var records []*kgo.Record
		for _, shape := range Shapes() {
			record := &kgo.Record{Topic: topic("shapes"), Key: shape.Key, Value: shape.Value}
			for _, header := range shape.Headers {
				record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Key, Value: header.Value})
			}
			records = append(records, record)
		}
		send(client(bootstrap, manual), records...)
		var found []Shape
		for _, record := range read(bootstrap, topic("shapes"), len(records)) {
			shape := Shape{Key: record.Key, Value: record.Value}
			for _, header := range record.Headers {
				shape.Headers = append(shape.Headers, Header{header.Key, header.Value})
			}
			found = append(found, shape)
		}
		Equal(found, Shapes(), "records")
	})
	add("keys", func() {
		var records []*kgo.Record
		for number := range Keys {
			records = append(records, &kgo.Record{Topic: topic("keys"), Key: fmt.Appendf(nil, "key-%d", number), Value: []byte("v")})
		}
		send(client(bootstrap), records...)
	})
	add("large", func() {
		value := []byte(strings.Repeat("x", Large))
		send(client(bootstrap, manual, kgo.ProducerBatchMaxBytes(4_000_000)), &kgo.Record{Topic: topic("large"), Value: value})
		Equal(len(read(bootstrap, topic("large"), 1)[0].Value), Large, "bytes")
	})
	add("empty", func() {
		one := client(bootstrap, kgo.ConsumeTopics(topic("empty")))
		defer one.Close()
		limit, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer cancel()
		Equal(one.PollFetches(limit).NumRecords(), 0, "records")
		admin := kadm.NewClient(one)
		start, _ := Got(admin.ListStartOffsets(seconds(10), topic("empty"))).Lookup(topic("empty"), 0)
		end, _ := Got(admin.ListEndOffsets(seconds(10), topic("empty"))).Lookup(topic("empty"), 0)
		Equal([]int64{start.Offset, end.Offset}, []int64{0, 0}, "the ends")
	})
	add("seek by time", func() {
		var records []*kgo.Record
		for number := range 100 {
			at := time.UnixMilli(FirstTime + int64(number)*1_000)
			records = append(records, &kgo.Record{Topic: topic("times"), Value: []byte(strconv.Itoa(number)), Timestamp: at})
		}
		send(client(bootstrap, manual), records...)
		offset := kgo.NewOffset().AfterMilli(Sought)
		one := client(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic("times"): {0: offset}}))
		defer one.Close()
		first := take(one, 1)[0]
		Equal(first.Offset, 51, "offset by time")
		Equal(string(first.Value), "51", "the record there")
	})
	add("commits", func() {
		goesOnAt := func(expected int64, count int) {
			one := client(bootstrap, kgo.ConsumerGroup(topic("commits")), kgo.ConsumeTopics(topic("times")), kgo.DisableAutoCommit())
			defer one.Close()
			records := take(one, count)
			Equal(records[0].Offset, expected, "where the group goes on")
			Must(one.CommitRecords(seconds(10), records...))
		}
		goesOnAt(0, 40)
		goesOnAt(40, 5)
		one := client(bootstrap)
		defer one.Close()
		admin := kadm.NewClient(one)
		reset := kadm.Offsets{}
		reset.Add(kadm.Offset{Topic: topic("times"), Partition: 0, At: 10, LeaderEpoch: -1})
		Must(Got(admin.CommitOffsets(seconds(10), topic("commits"), reset)).Error())
		set, _ := Got(admin.FetchOffsets(seconds(10), topic("commits"))).Lookup(topic("times"), 0)
		Equal(set.At, 10, "what was set")
		goesOnAt(10, 1)
	})
	add("regex", func() {
		one := client(bootstrap, kgo.ConsumerGroup(topic("regex")), kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+prefix+"-regex-.*"))
		defer one.Close()
		var found []string
		for _, record := range take(one, 2) {
			found = append(found, string(record.Value))
		}
		slices.Sort(found)
		Equal(found, []string{"regex-a", "regex-b"}, "records")
	})
	add("admin", func() {
		// It keeps what it knows of topics for so long.
		one := client(bootstrap, kgo.MetadataMinAge(10*time.Millisecond))
		defer one.Close()
		admin := kadm.NewClient(one)
		made, group, retention := topic("made"), topic("commits"), "60000"
		Got(admin.CreateTopic(seconds(10), 3, 1, map[string]*string{"retention.ms": &retention}, made))
		Eventually(func() bool { return Got(admin.ListTopics(seconds(10))).Has(made) }, "the topic is listed")
		configs := Got(Got(admin.DescribeTopicConfigs(seconds(10), made)).On(made, nil))
		for _, config := range configs.Configs {
			if config.Key == "retention.ms" {
				Equal(*config.Value, retention, "retention.ms")
			}
		}
		Must(Got(admin.UpdatePartitions(seconds(10), 5, made)).Error())
		Eventually(func() bool { return len(Got(admin.ListTopics(seconds(10)))[made].Partitions) == 5 }, "it grows")
		Got(admin.DeleteTopic(seconds(10), made))
		Eventually(func() bool { return !Got(admin.ListTopics(seconds(10))).Has(made) }, "the topic goes")
		_, listed := Got(admin.ListGroups(seconds(10)))[group]
		Equal(listed, true, "the group is listed")
		Equal(Got(admin.DescribeGroups(seconds(10), group))[group].State, "Empty", "state of the group")
		Got(admin.DeleteGroup(seconds(10), group))
		_, listed = Got(admin.ListGroups(seconds(10)))[group]
		Equal(listed, false, "the group is listed after deletion")
	})
	add("settings", func() {
		one := client(bootstrap)
		defer one.Close()
		admin := kadm.NewClient(one)
		retention := "9000000000000"
		set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &retention}}
		Must(Got(Got(admin.AlterTopicConfigs(seconds(10), set, topic("times"))).On(topic("times"), nil)).Err)
		Eventually(func() bool {
			described := Got(Got(admin.DescribeTopicConfigs(seconds(10), topic("times"))).On(topic("times"), nil))
			return slices.ContainsFunc(described.Configs, func(config kadm.Config) bool {
				return config.Key == "retention.ms" && *config.Value == retention
			})
		}, "retention.ms is as set")
		before := kadm.Offsets{}
		before.Add(kadm.Offset{Topic: topic("times"), Partition: 0, At: 20})
		Must(Got(admin.DeleteRecords(seconds(10), before)).Error())
		start, _ := Got(admin.ListStartOffsets(seconds(10), topic("times"))).Lookup(topic("times"), 0)
		Equal(start.Offset, 20, "the beginning")
	})
	Run(all)
}

func member(bootstrap, group, topic, instance, session string) {
	ended := Terminated()
	millis := Got(strconv.Atoi(session))
	var lock sync.Mutex
	owned := map[int32]bool{}
	change := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			lock.Lock()
			defer lock.Unlock()
			for _, partition := range changed[topic] {
				if has {
					owned[partition] = true
				} else {
					delete(owned, partition)
				}
			}
			var parts []string
			for partition := range owned {
				parts = append(parts, strconv.Itoa(int(partition)))
			}
			// A cooperative member is told of nothing new at each rebalance.
			if len(changed[topic]) > 0 {
				Say("assigned %s", strings.Join(parts, ","))
			}
		}
	}
	options := []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.SessionTimeout(time.Duration(millis) * time.Millisecond),
		kgo.HeartbeatInterval(500 * time.Millisecond), kgo.AutoCommitInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false))}
	if instance != "-" {
		options = append(options, kgo.InstanceID(instance))
	}
	one := client(bootstrap, options...)
	running, stop := context.WithCancel(context.Background())
	go func() { <-ended; stop() }()
	for running.Err() == nil {
		one.PollFetches(running).EachRecord(func(record *kgo.Record) {
			Say("record %d %d %s", record.Partition, record.Offset, record.Value)
		})
	}
	Must(one.CommitUncommittedOffsets(seconds(10)))
	one.Close()
}

func copyRecords(bootstrap, group, source, target, transaction string) {
	ended := Terminated()
	session := Got(kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(source),
		kgo.TransactionalID(transaction), kgo.InstanceID("copier"), kgo.SessionTimeout(15*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequireStableFetchOffsets()))
	running, stop := context.WithCancel(context.Background())
	go func() { <-ended; stop() }()
	for {
		records := session.PollRecords(running, 20).Records()
		if running.Err() != nil {
			break
		}
		if len(records) == 0 {
			continue
		}
		Must(session.Begin())
		for _, record := range records {
			session.Produce(context.Background(), &kgo.Record{Topic: target, Partition: record.Partition, Value: record.Value}, nil)
		}
		time.Sleep(50 * time.Millisecond)
		if Got(session.End(seconds(20), kgo.TryCommit)) {
			Say("committed %d", len(records))
		}
	}
	session.Close()
}
