// Command weather publishes what it reads, a line a message, through the unmodified Go client of RocketMQ.
//
//	weather REGISTRY TOPIC
//
// Lines are sent in batches, in their order. After each batch it prints how many lines were answered so far and how many
// were sent again because their answer did not come. It ends when its input has ended and all of it was answered.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	batchMessages = 50
	sendTimeout   = 3 * time.Second
	retryAfter    = 50 * time.Millisecond
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(registry, topic string) error {
	rlog.SetLogLevel("error")
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{registry})),
		producer.WithGroupName("weather-stations"),
		producer.WithRetry(0), // sending again is counted, so it is done here
		producer.WithSendMsgTimeout(sendTimeout),
	)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	lines := make(chan string, batchMessages)
	go read(lines)
	answered, resent := 0, 0
	for batch := take(lines); len(batch) > 0; batch = take(lines) {
		messages := make([]*primitive.Message, len(batch))
		for i, line := range batch {
			messages[i] = message(topic, line)
		}
		for !send(sender, messages) {
			resent += len(batch)
			time.Sleep(retryAfter)
		}
		answered += len(batch)
		fmt.Println(answered, resent)
	}
	return nil
}

func read(lines chan<- string) {
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
		lines <- scanner.Text()
	}
	close(lines)
}

// take waits for a line and returns it with those that are there already; nothing at the end of the input.
func take(lines <-chan string) []string {
	var batch []string
	for line := range lines {
		batch = append(batch, line)
		if len(batch) == batchMessages || len(lines) == 0 {
			break
		}
	}
	return batch
}

// message makes a message of a line "AIRPORT,...,HOUR": the airport is its tag, both are its key.
func message(topic, line string) *primitive.Message {
	airport, hour := line[:strings.Index(line, ",")], line[strings.LastIndex(line, ",")+1:]
	return primitive.NewMessage(topic, []byte(line)).WithTag(airport).WithKeys([]string{airport + "|" + hour})
}

func send(sender rocketmq.Producer, messages []*primitive.Message) bool {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	result, err := sender.SendSync(ctx, messages...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "not answered:", err)
		return false
	}
	return result.Status == primitive.SendOK
}
