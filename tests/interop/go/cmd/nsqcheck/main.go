// Command nsqcheck drives an NSQ server with unmodified go-nsq and reports what it saw as one JSON object.
//
//	nsqcheck -nsqd-tcp-address 127.0.0.1:4150 -topic checks -messages 2000
//
// It publishes (Publish, MultiPublish, PublishAsync, DeferredPublish), consumes with several handlers, requeues some
// messages once with a delay and some at once, touches slow ones past their timeout, lets one time out, and stops.
// The test that starts it decides what is right.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

// report is what the test reads.
type report struct {
	Published      int            `json:"published"`
	Finished       map[string]int `json:"finished"`        // body to number of deliveries that were finished
	MostAttempts   map[string]int `json:"most_attempts"`   // body to the highest attempts seen, where above 1
	DeferredMillis int64          `json:"deferred_millis"` // from DeferredPublish to its delivery
	RequeuedMillis int64          `json:"requeued_millis"` // shortest time from REQ with delay to redelivery
	TouchedMillis  int64          `json:"touched_millis"`  // how long the touched message was held
	BadTopicError  string         `json:"bad_topic_error"`
	AfterBadTopic  bool           `json:"after_bad_topic"` // the producer publishes again after a fatal refusal
	Requeued       uint64         `json:"requeued"`
	Connections    int            `json:"connections"`
}

// recorder handles messages and keeps what the report needs. The mutex guards all of it.
type recorder struct {
	mu       sync.Mutex
	report   *report
	requeued map[string]time.Time
	deferred time.Time
	late     *nsq.Message
	done     chan struct{}
	wanted   int
}

func (r *recorder) HandleMessage(message *nsq.Message) error {
	body := string(message.Body)
	r.note(body, int(message.Attempts))
	first := message.Attempts == 1
	switch {
	case first && strings.HasPrefix(body, "requeue-later"):
		r.mu.Lock()
		r.requeued[body] = time.Now()
		r.mu.Unlock()
		message.DisableAutoResponse()
		message.RequeueWithoutBackoff(500 * time.Millisecond)
		return nil
	case first && strings.HasPrefix(body, "requeue-now"):
		message.DisableAutoResponse()
		message.RequeueWithoutBackoff(0)
		return nil
	case first && body == "time-out":
		message.DisableAutoResponse() // answered much too late: the server must deliver it again
		r.mu.Lock()
		r.late = message
		r.mu.Unlock()
		return nil
	case body == "touch":
		start := time.Now()
		for range 4 {
			time.Sleep(400 * time.Millisecond)
			message.Touch()
		}
		r.mu.Lock()
		r.report.TouchedMillis = time.Since(start).Milliseconds()
		r.mu.Unlock()
	}
	r.finish(body)
	return nil
}

func (r *recorder) note(body string, attempts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if attempts > 1 && attempts > r.report.MostAttempts[body] {
		r.report.MostAttempts[body] = attempts
	}
	if at, found := r.requeued[body]; found && attempts == 2 {
		waited := time.Since(at).Milliseconds()
		if r.report.RequeuedMillis == 0 || waited < r.report.RequeuedMillis {
			r.report.RequeuedMillis = waited
		}
	}
	if body == "deferred" {
		r.report.DeferredMillis = time.Since(r.deferred).Milliseconds()
	}
}

func (r *recorder) finish(body string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Finished[body]++
	if len(r.report.Finished) == r.wanted {
		select {
		case <-r.done:
		default:
			close(r.done)
		}
	}
}

func main() {
	address := flag.String("nsqd-tcp-address", "127.0.0.1:4150", "server")
	topic := flag.String("topic", "nsqcheck", "topic to use")
	messages := flag.Int("messages", 2000, "ordinary messages to publish")
	timeout := flag.Duration("timeout", 30*time.Second, "give up after this time")
	flag.Parse()
	if err := run(*address, *topic, *messages, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "nsqcheck:", err)
		os.Exit(1)
	}
}

func run(address, topic string, messages int, timeout time.Duration) error {
	result := report{Finished: map[string]int{}, MostAttempts: map[string]int{}}
	special := []string{
		"deferred", "touch", "time-out", "requeue-later-1", "requeue-later-2", "requeue-now-1", "requeue-now-2",
	}
	records := &recorder{
		report:   &result,
		requeued: map[string]time.Time{},
		done:     make(chan struct{}),
		wanted:   messages + len(special),
	}

	config := nsq.NewConfig()
	config.MsgTimeout = time.Second
	config.MaxInFlight = 200
	config.HeartbeatInterval = time.Second
	config.DefaultRequeueDelay = 0
	consumer, err := nsq.NewConsumer(topic, "checks", config)
	if err != nil {
		return err
	}
	quiet := log.New(os.Stderr, "", 0)
	consumer.SetLogger(quiet, nsq.LogLevelError)
	consumer.AddConcurrentHandlers(records, 8)
	if err := consumer.ConnectToNSQD(address); err != nil {
		return err
	}

	producer, err := nsq.NewProducer(address, config)
	if err != nil {
		return err
	}
	producer.SetLogger(quiet, nsq.LogLevelError)
	if err := producer.Ping(); err != nil {
		return err
	}
	if err := publish(producer, records, topic, messages, special); err != nil {
		return err
	}
	result.Published = messages + len(special)

	if err := producer.Publish("bad$name", []byte("x")); err != nil {
		result.BadTopicError = err.Error()
	}
	// The refusal ended the connection; the producer connects again by itself, not always at the first call.
	for range 20 {
		if producer.Publish(topic+"-after", []byte("x")) == nil {
			result.AfterBadTopic = true
			break
		}
		time.Sleep(50 * time.Millisecond)
	}

	select {
	case <-records.done:
	case <-time.After(timeout):
		return fmt.Errorf("only %d of %d messages finished within %s", len(result.Finished), records.wanted, timeout)
	}
	// Refused, as it is no longer in flight, and not fatal. go-nsq's Stop waits 30 s for messages without an answer.
	records.late.Finish()
	stats := consumer.Stats()
	result.Requeued = stats.MessagesRequeued
	result.Connections = stats.Connections
	consumer.Stop()
	<-consumer.StopChan
	producer.Stop()
	return json.NewEncoder(os.Stdout).Encode(&result)
}

// publish uses every way of publishing, in equal parts.
func publish(producer *nsq.Producer, records *recorder, topic string, messages int, special []string) error {
	var batch [][]byte
	transactions := make(chan *nsq.ProducerTransaction, messages)
	pending := 0
	for number := range messages {
		body := fmt.Appendf(nil, "message-%d", number)
		switch number % 3 {
		case 0:
			if err := producer.Publish(topic, body); err != nil {
				return err
			}
		case 1:
			batch = append(batch, body)
		case 2:
			if err := producer.PublishAsync(topic, body, transactions); err != nil {
				return err
			}
			pending++
		}
	}
	if err := producer.MultiPublish(topic, batch); err != nil {
		return err
	}
	for range pending {
		if transaction := <-transactions; transaction.Error != nil {
			return transaction.Error
		}
	}
	for _, body := range special[1:] {
		if err := producer.Publish(topic, []byte(body)); err != nil {
			return err
		}
	}
	records.mu.Lock()
	records.deferred = time.Now()
	records.mu.Unlock()
	return producer.DeferredPublish(topic, 700*time.Millisecond, []byte(special[0]))
}
