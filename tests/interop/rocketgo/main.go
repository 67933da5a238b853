// Command rocketgo drives the unmodified Go client line by line, as RocketAgent.java drives the Java clients: a command
// and key=value pairs separated by tabs in, one line of JSON out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options map[string]string

func (o options) number(key string, otherwise int) int {
	if text, ok := o[key]; ok {
		if value, err := strconv.Atoi(text); err == nil {
			return value
		}
	}
	return otherwise
}

func (o options) or(key, otherwise string) string {
	if text, ok := o[key]; ok {
		return text
	}
	return otherwise
}

func (o options) registries() []string {
	return strings.Split(o["namesrv"], ";")
}

func (o options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o["accessKey"], SecretKey: o["secretKey"]}
}

// inbox is what a consumer got and nobody has asked for yet.
type inbox struct {
	sync.Mutex
	messages []map[string]any
}

func (b *inbox) add(message map[string]any) {
	b.Lock()
	b.messages = append(b.messages, message)
	b.Unlock()
}

func (b *inbox) take() []map[string]any {
	b.Lock()
	defer b.Unlock()
	taken := b.messages
	b.messages = nil
	if taken == nil {
		taken = []map[string]any{}
	}
	return taken
}

type agent struct {
	producers    map[string]rocketmq.Producer
	transactions map[string]rocketmq.TransactionProducer
	consumers    map[string]rocketmq.PushConsumer
	received     map[string]*inbox
	checked      map[string]*inbox
}

func describe(m *primitive.MessageExt) map[string]any {
	return map[string]any{
		"topic": m.Topic, "body": string(m.Body), "msgId": m.MsgId, "queueId": m.Queue.QueueId,
		"queueOffset": m.QueueOffset, "reconsumeTimes": m.ReconsumeTimes, "flag": m.Flag, "sysFlag": m.SysFlag,
		"bornTimestamp": m.BornTimestamp, "storeTimestamp": m.StoreTimestamp, "properties": m.GetProperties(),
		"receivedAt": time.Now().UnixMilli(),
	}
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK: "SEND_OK", primitive.SendFlushDiskTimeout: "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT", primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func describeResult(r *primitive.SendResult) map[string]any {
	return map[string]any{
		"status": statuses[r.Status], "msgId": r.MsgID, "offsetMsgId": r.OffsetMsgID, "queueId": r.MessageQueue.QueueId,
		"queueOffset": r.QueueOffset, "broker": r.MessageQueue.BrokerName,
	}
}

func build(o options, index int) *primitive.Message {
	number := strconv.Itoa(index)
	body := o.or("body", "body-") + number
	if size := o.number("size", 0); size > len(body) {
		body += strings.Repeat("x", size-len(body))
	}
	m := primitive.NewMessage(o["topic"], []byte(body))
	if tags := o["tags"]; tags != "" {
		m.WithTag(tags)
	}
	if keys := o["keys"]; keys != "" {
		m.WithKeys(strings.Split(strings.ReplaceAll(keys, "#", number), " "))
	}
	if level := o.number("delay", 0); level > 0 {
		m.WithDelayTimeLevel(level)
	}
	if key := o["sharding"]; key != "" {
		m.WithShardingKey(strings.ReplaceAll(key, "#", strconv.Itoa(index%o.number("orders", 3))))
	}
	for name, value := range o {
		if strings.HasPrefix(name, "p.") {
			m.WithProperty(name[2:], strings.ReplaceAll(value, "#", number))
		}
	}
	return m
}

func (a *agent) startProducer(o options) (any, error) {
	choice := producer.WithQueueSelector(producer.NewRoundRobinQueueSelector())
	if o["selector"] == "hash" {
		choice = producer.WithQueueSelector(producer.NewHashQueueSelector())
	}
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver(o.registries())),
		producer.WithGroupName(o["group"]), producer.WithRetry(o.number("retries", 2)), choice,
		producer.WithInstanceName(o["id"]+strconv.FormatInt(time.Now().UnixNano(), 10)),
		producer.WithCredentials(o.credentials()),
		producer.WithSendMsgTimeout(5*time.Second),
	)
	if err != nil {
		return nil, err
	}
	a.producers[o["id"]] = p
	return true, p.Start()
}

func (a *agent) send(o options) (any, error) {
	p, count := a.producers[o["id"]], o.number("count", 1)
	results := []any{}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch o.or("mode", "sync") {
	case "sync":
		for i := 0; i < count; i++ {
			r, err := p.SendSync(ctx, build(o, i))
			if err != nil {
				return nil, err
			}
			results = append(results, describeResult(r))
		}
	case "oneway":
		for i := 0; i < count; i++ {
			if err := p.SendOneWay(ctx, build(o, i)); err != nil {
				return nil, err
			}
		}
	case "async":
		var lock sync.Mutex
		var done sync.WaitGroup
		for i := 0; i < count; i++ {
			done.Add(1)
			err := p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) {
				lock.Lock()
				if err != nil {
					results = append(results, err.Error())
				} else {
					results = append(results, describeResult(r))
				}
				lock.Unlock()
				done.Done()
			}, build(o, i))
			if err != nil {
				return nil, err
			}
		}
		done.Wait()
	case "batch":
		batch := []*primitive.Message{}
		for i := 0; i < count; i++ {
			batch = append(batch, build(o, i))
		}
		r, err := p.SendSync(ctx, batch...)
		if err != nil {
			return nil, err
		}
		results = append(results, describeResult(r))
	default:
		return nil, errors.New("unknown mode")
	}
	return results, nil
}

func (a *agent) startConsumer(o options) (any, error) {
	model := consumer.Clustering
	if o["model"] == "broadcast" {
		model = consumer.BroadCasting
	}
	settings := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(o.registries())),
		consumer.WithGroupName(o["group"]), consumer.WithConsumerModel(model),
		consumer.WithInstance(o["id"] + strconv.FormatInt(time.Now().UnixNano(), 10)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(o.credentials()),
		consumer.WithConsumerOrder(o["orderly"] != ""),
	}
	if most, ok := o["maxReconsume"]; ok {
		value, _ := strconv.Atoi(most)
		settings = append(settings, consumer.WithMaxReconsumeTimes(int32(value)))
	}
	c, err := rocketmq.NewPushConsumer(settings...)
	if err != nil {
		return nil, err
	}
	box := &inbox{}
	a.received[o["id"]] = box
	failures, level := int32(o.number("fail", 0)), o.number("level", 0)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.or("tags", "*")}
	if sql := o["sql"]; sql != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	err = c.Subscribe(o["topic"], selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failed := false
		for _, m := range messages {
			box.add(describe(m))
			failed = failed || m.ReconsumeTimes < failures
		}
		if failed {
			if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok && level > 0 {
				concurrent.DelayLevelWhenNextConsume = level
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	a.consumers[o["id"]] = c
	return true, c.Start()
}

// startResponder consumes requests and answers each with "re:" and its body.
func (a *agent) startResponder(o options) (any, error) {
	id := o["id"] + strconv.FormatInt(time.Now().UnixNano(), 10)
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver(o.registries())),
		producer.WithGroupName(o["group"]+"-reply"), producer.WithInstanceName(id+"-reply"),
	)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver(o.registries())),
		consumer.WithGroupName(o["group"]), consumer.WithInstance(id),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	answer := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			body := append([]byte("re:"), m.Body...)
			reply, err := consumer.CreateReplyMessage(m, body)
			if err == nil {
				reply.Body = body // v2.1.2 takes the body for properties
				_, err = p.SendSync(ctx, reply)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "reply:", err)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := c.Subscribe(o["topic"], consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, answer); err != nil {
		return nil, err
	}
	a.consumers[o["id"]], a.producers[o["id"]+"-producer"] = c, p
	return true, c.Start()
}

// listener answers for local transactions with the words it was given.
type listener struct {
	check string
	box   *inbox
}

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l *listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return state(m.GetProperty("wanted"))
}

func (l *listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	l.box.add(describe(m))
	return state(l.check)
}

func (a *agent) startTransactions(o options) (any, error) {
	box := &inbox{}
	a.checked[o["id"]] = box
	p, err := rocketmq.NewTransactionProducer(&listener{o["check"], box},
		producer.WithNsResolver(primitive.NewPassthroughResolver(o.registries())),
		producer.WithGroupName(o["group"]),
		producer.WithInstanceName(o["id"]+strconv.FormatInt(time.Now().UnixNano(), 10)))
	if err != nil {
		return nil, err
	}
	a.transactions[o["id"]] = p
	return true, p.Start()
}

func (a *agent) sendInTransaction(o options) (any, error) {
	m := build(o, 0)
	m.WithProperty("wanted", o["state"])
	r, err := a.transactions[o["id"]].SendMessageInTransaction(context.Background(), m)
	if err != nil {
		return nil, err
	}
	return []any{describeResult(r.SendResult)}, nil
}

func (a *agent) shutdown(id string) (any, error) {
	if p, ok := a.producers[id]; ok {
		delete(a.producers, id)
		return true, p.Shutdown()
	}
	if p, ok := a.transactions[id]; ok {
		delete(a.transactions, id)
		return true, p.Shutdown()
	}
	if c, ok := a.consumers[id]; ok {
		delete(a.consumers, id)
		return true, c.Shutdown()
	}
	return false, nil
}

func (a *agent) run(command string, o options) (any, error) {
	switch command {
	case "producer":
		return a.startProducer(o)
	case "send":
		return a.send(o)
	case "consumer":
		return a.startConsumer(o)
	case "received":
		return a.received[o["id"]].take(), nil
	case "tx-producer":
		return a.startTransactions(o)
	case "tx-send":
		return a.sendInTransaction(o)
	case "tx-checked":
		return a.checked[o["id"]].take(), nil
	case "request":
		m := build(o, 0)
		r, err := a.producers[o["id"]].Request(context.Background(), 15*time.Second, m)
		if err != nil {
			return nil, err
		}
		return string(r.Body), nil
	case "responder":
		return a.startResponder(o)
	case "shutdown":
		return a.shutdown(o["id"])
	}
	return nil, fmt.Errorf("unknown command %s", command)
}

func main() {
	rlog.SetLogLevel("error")
	out := bufio.NewWriter(os.Stdout)
	os.Stdout = os.Stderr // what the client prints must not be taken for an answer
	a := &agent{
		map[string]rocketmq.Producer{}, map[string]rocketmq.TransactionProducer{}, map[string]rocketmq.PushConsumer{},
		map[string]*inbox{}, map[string]*inbox{},
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		words := strings.Split(in.Text(), "\t")
		o := options{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			o[name] = value
		}
		answer := map[string]any{}
		if result, err := a.run(words[0], o); err != nil {
			answer["error"], answer["text"], answer["code"] = fmt.Sprintf("%T", err), err.Error(), 0
		} else {
			answer["ok"] = result
		}
		line, _ := json.Marshal(answer)
		out.Write(append(line, '\n'))
		out.Flush()
	}
}
