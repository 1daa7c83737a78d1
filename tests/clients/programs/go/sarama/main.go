// sarama in the scenarios of common.py.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

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

func configuration() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func send(bootstrap string, config *sarama.Config, messages ...*sarama.ProducerMessage) {
	producer := Got(sarama.NewSyncProducer([]string{bootstrap}, config))
	defer producer.Close()
	Must(producer.SendMessages(messages))
}

// bytes is an encoder, or none for null: a nil ByteEncoder would be an empty value.
func bytes(value []byte) sarama.Encoder {
	if value == nil {
		return nil
	}
	return sarama.ByteEncoder(value)
}

func read(bootstrap, topic string, from int64, count int) []*sarama.ConsumerMessage {
	consumer := Got(sarama.NewConsumer([]string{bootstrap}, configuration()))
	defer consumer.Close()
	part := Got(consumer.ConsumePartition(topic, 0, from))
	defer part.Close()
	var messages []*sarama.ConsumerMessage
	limit := time.After(20 * time.Second)
	for len(messages) < count {
		select {
		case message := <-part.Messages():
			messages = append(messages, message)
		case <-limit:
			panic(Failed{fmt.Sprintf("%d of %d records within 20 s", len(messages), count)})
		}
	}
	return messages
}

func scenarios(bootstrap, prefix string) {
	topic := func(name string) string { return prefix + "-" + name }
	addresses := []string{bootstrap}
	codecs := map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
	var all []Scenario
	add := func(name string, run func()) { all = append(all, Scenario{name, run}) }

	for _, codec := range Codecs {
		add("stored as "+codec, func() {
			config := configuration()
			config.Producer.Compression = codecs[codec]
			config.Producer.Flush.Frequency = 20 * time.Millisecond
			var messages []*sarama.ProducerMessage
			for number := range Records {
				messages = append(messages, &sarama.ProducerMessage{Topic: topic("stored-" + codec), Key: bytes(Key(number)), Value: bytes(Value(number))})
			}
			send(bootstrap, config, messages...)
			for number, message := range read(bootstrap, topic("stored-"+codec), 0, Records) {
				Equal(string(message.Key), string(Key(number)), "key")
				Equal(string(message.Value), string(Value(number)), "value")
			}
		})
	}
	add("shapes", func() {
		var messages []*sarama.ProducerMessage
		for _, shape := range Shapes() {
			message := &sarama.ProducerMessage{Topic: topic("shapes"), Key: bytes(shape.Key), Value: bytes(shape.Value)}
			for _, header := range shape.Headers {
				message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value})
			}
			messages = append(messages, message)
		}
		send(bootstrap, configuration(), messages...)
		var found []Shape
		for _, message := range read(bootstrap, topic("shapes"), 0, len(messages)) {
			shape := Shape{Key: message.Key, Value: message.Value}
			for _, header := range message.Headers {
				shape.Headers = append(shape.Headers, Header{string(header.Key), header.Value})
			}
			found = append(found, shape)
		}
		Equal(found, Shapes(), "records")
	})
	add("keys", func() {
		var messages []*sarama.ProducerMessage
		for number := range Keys {
			key := fmt.Appendf(nil, "key-%d", number)
			messages = append(messages, &sarama.ProducerMessage{Topic: topic("keys"), Key: bytes(key), Value: sarama.StringEncoder("v")})
		}
		send(bootstrap, configuration(), messages...)
	})
	add("large", func() {
		config := configuration()
		config.Producer.MaxMessageBytes = 4_000_000
		value := []byte(strings.Repeat("x", Large))
		send(bootstrap, config, &sarama.ProducerMessage{Topic: topic("large"), Value: bytes(value)})
		Equal(len(read(bootstrap, topic("large"), 0, 1)[0].Value), Large, "bytes")
	})
	add("empty", func() {
		client := Got(sarama.NewClient(addresses, configuration()))
		defer client.Close()
		consumer := Got(sarama.NewConsumerFromClient(client))
		part := Got(consumer.ConsumePartition(topic("empty"), 0, sarama.OffsetOldest))
		select {
		case message := <-part.Messages():
			panic(Failed{fmt.Sprintf("a record at %d", message.Offset)})
		case <-time.After(700 * time.Millisecond):
		}
		Must(part.Close())
		start, end := Got(client.GetOffset(topic("empty"), 0, sarama.OffsetOldest)), Got(client.GetOffset(topic("empty"), 0, sarama.OffsetNewest))
		Equal([]int64{start, end}, []int64{0, 0}, "the ends")
	})
	add("seek by time", func() {
		var messages []*sarama.ProducerMessage
		for number := range 100 {
			at := time.UnixMilli(FirstTime + int64(number)*1_000)
			messages = append(messages, &sarama.ProducerMessage{Topic: topic("times"), Value: sarama.StringEncoder(strconv.Itoa(number)), Timestamp: at})
		}
		send(bootstrap, configuration(), messages...)
		client := Got(sarama.NewClient(addresses, configuration()))
		defer client.Close()
		offset := Got(client.GetOffset(topic("times"), 0, Sought))
		Equal(offset, 51, "offset by time")
		Equal(string(read(bootstrap, topic("times"), offset, 1)[0].Value), "51", "the record there")
	})
	add("commits", func() {
		goesOnAt := func(expected int64, count int) {
			config := configuration()
			config.Consumer.Offsets.AutoCommit.Enable = false
			group := Got(sarama.NewConsumerGroup(addresses, topic("commits"), config))
			defer group.Close()
			taker := &taker{count: count}
			limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			for len(taker.offsets) < count {
				Must(limit.Err())
				Must(group.Consume(limit, []string{topic("times")}, taker))
			}
			Equal(taker.offsets[0], expected, "where the group goes on")
		}
		goesOnAt(0, 40)
		goesOnAt(40, 5)
		client := Got(sarama.NewClient(addresses, configuration()))
		defer client.Close()
		offsets := Got(sarama.NewOffsetManagerFromClient(topic("commits"), client))
		part := Got(offsets.ManagePartition(topic("times"), 0))
		part.ResetOffset(10, "reset")
		offsets.Commit()
		Must(part.Close())
		Must(offsets.Close())
		admin := Got(sarama.NewClusterAdminFromClient(client))
		set := Got(admin.ListConsumerGroupOffsets(topic("commits"), map[string][]int32{topic("times"): {0}}))
		Equal(set.GetBlock(topic("times"), 0).Offset, 10, "what was set")
		goesOnAt(10, 1)
	})
	add("regex", func() { panic(NotThere{"it subscribes to names only"}) })
	add("admin", func() {
		admin := Got(sarama.NewClusterAdmin(addresses, configuration()))
		defer admin.Close()
		made, group, retention := topic("made"), topic("commits"), "60000"
		detail := &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention}}
		Must(admin.CreateTopic(made, detail, false))
		Eventually(func() bool { _, listed := Got(admin.ListTopics())[made]; return listed }, "the topic is listed")
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: made, ConfigNames: []string{"retention.ms"}}
		Equal(Got(admin.DescribeConfig(resource))[0].Value, retention, "retention.ms")
		Must(admin.CreatePartitions(made, 5, nil, false))
		Eventually(func() bool { return len(Got(admin.DescribeTopics([]string{made}))[0].Partitions) == 5 }, "it grows")
		Must(admin.DeleteTopic(made))
		Eventually(func() bool { _, listed := Got(admin.ListTopics())[made]; return !listed }, "the topic goes")
		_, listed := Got(admin.ListConsumerGroups())[group]
		Equal(listed, true, "the group is listed")
		Equal(Got(admin.DescribeConsumerGroups([]string{group}))[0].State, "Empty", "state of the group")
		Must(admin.DeleteConsumerGroup(group))
		_, listed = Got(admin.ListConsumerGroups())[group]
		Equal(listed, false, "the group is listed after deletion")
	})
	add("settings", func() {
		client := Got(sarama.NewClient(addresses, configuration()))
		admin := Got(sarama.NewClusterAdminFromClient(client))
		defer admin.Close()
		retention := "9000000000000"
		set := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &retention}
		Must(admin.IncrementalAlterConfig(sarama.TopicResource, topic("times"), map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": set}, false))
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic("times"), ConfigNames: []string{"retention.ms"}}
		Eventually(func() bool { return Got(admin.DescribeConfig(resource))[0].Value == retention }, "retention.ms is as set")
		Must(admin.DeleteRecords(topic("times"), map[int32]int64{0: 20}))
		Equal(Got(client.GetOffset(topic("times"), 0, sarama.OffsetOldest)), 20, "the beginning")
	})
	Run(all)
}

// taker reads so many records in a group and commits them.
type taker struct {
	count   int
	offsets []int64
}

func (*taker) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*taker) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (taker *taker) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			taker.offsets = append(taker.offsets, message.Offset)
			session.MarkMessage(message, "so far")
			if len(taker.offsets) == taker.count {
				session.Commit()
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

// shower prints what it is given.
type shower struct{ topic string }

func (shower *shower) Setup(session sarama.ConsumerGroupSession) error {
	var parts []string
	for _, partition := range session.Claims()[shower.topic] {
		parts = append(parts, strconv.Itoa(int(partition)))
	}
	Say("assigned %s", strings.Join(parts, ","))
	return nil
}

func (*shower) Cleanup(sarama.ConsumerGroupSession) error {
	Say("assigned -")
	return nil
}

func (*shower) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			Say("record %d %d %s", message.Partition, message.Offset, message.Value)
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func groupOf(bootstrap, group, instance string, session time.Duration, config *sarama.Config) sarama.ConsumerGroup {
	config.Consumer.Group.Session.Timeout = session
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Offsets.AutoCommit.Interval = 500 * time.Millisecond
	if instance != "-" {
		config.Consumer.Group.InstanceId = instance
	}
	return Got(sarama.NewConsumerGroup([]string{bootstrap}, group, config))
}

func member(bootstrap, group, topic, instance, session string) {
	ended := Terminated()
	millis := Got(strconv.Atoi(session))
	one := groupOf(bootstrap, group, instance, time.Duration(millis)*time.Millisecond, configuration())
	running, stop := context.WithCancel(context.Background())
	go func() { <-ended; stop() }()
	for running.Err() == nil {
		Must(one.Consume(running, []string{topic}, &shower{topic}))
	}
	Must(one.Close())
}

// copier copies what it is given in transactions.
type copier struct {
	producer sarama.AsyncProducer
	group    string
	target   string
	turn     chan struct{}
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (copier *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			messages := []*sarama.ConsumerMessage{message}
			for len(messages) < 20 && len(claim.Messages()) > 0 {
				messages = append(messages, <-claim.Messages())
			}
			// Partitions are claimed by a thread each, and the producer has one transaction at a time.
			copier.turn <- struct{}{}
			Must(copier.producer.BeginTxn())
			for _, one := range messages {
				copier.producer.Input() <- &sarama.ProducerMessage{Topic: copier.target, Partition: one.Partition, Value: bytes(one.Value)}
			}
			for range messages {
				select {
				case failed := <-copier.producer.Errors():
					panic(failed)
				case <-copier.producer.Successes():
				}
			}
			time.Sleep(20 * time.Millisecond)
			Must(copier.producer.AddMessageToTxn(messages[len(messages)-1], copier.group, nil))
			Must(copier.producer.CommitTxn())
			Say("committed %d", len(messages))
			<-copier.turn
		case <-session.Context().Done():
			return nil
		}
	}
}

func copyRecords(bootstrap, group, source, target, transaction string) {
	ended := Terminated()
	config := configuration()
	config.Producer.Transaction.ID = transaction
	config.Producer.Idempotent = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	producer := Got(sarama.NewAsyncProducer([]string{bootstrap}, config))
	reading := configuration()
	reading.Consumer.IsolationLevel = sarama.ReadCommitted
	reading.Consumer.Offsets.AutoCommit.Enable = false
	one := groupOf(bootstrap, group, "copier", 15*time.Second, reading)
	running, stop := context.WithCancel(context.Background())
	go func() { <-ended; stop() }()
	handler := &copier{producer, group, target, make(chan struct{}, 1)}
	for running.Err() == nil {
		Must(one.Consume(running, []string{source}, handler))
	}
	Must(one.Close())
	Must(producer.Close())
}
