package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"time"
)

// runRocketLive consumes as a group of push consumers does: the queues are divided among its members, and each queue has
// one pull, which waits at the broker while there is nothing.
func runRocketLive(flags *flag.FlagSet, args []string) error {
	var settings liveSettings
	var queues int
	settings.register(flags, "127.0.0.1:10911")
	flags.IntVar(&queues, "queues", 4, "queues of the topic, used in turn")
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	if queues < 1 || queues > 9 {
		return errQueues
	}
	settings.consumers = min(settings.consumers, queues)
	publishers, err := openRocket(settings.address, settings.publishers)
	if err != nil {
		return err
	}
	defer closeAll(publishers)
	if err := publishers[0].createTopic(settings.topic, queues); err != nil {
		return err
	}
	consumers, err := openRocket(settings.address, settings.consumers)
	if err != nil {
		return err
	}
	arrived := new(arrivals)
	members := make([]*livePuller, len(consumers))
	for i, conn := range consumers {
		members[i] = &livePuller{rocketPuller: newRocketPuller(conn, settings.topic, 32, "", make([]int64, queues)), arrived: arrived}
		if err := members[i].begin(i, len(consumers)); err != nil {
			return err
		}
	}
	stop := consumeLive(consumers, func(i int) error { return members[i].settleLive() })
	sends := make([]func() error, len(publishers))
	for i, conn := range publishers {
		sends[i] = liveSender(conn, settings, i, queues)
	}
	return errors.Join(runLive("rocket-live", settings, publishers, sends, arrived), stop())
}

// liveSender returns what sends one message and waits for its answer.
func liveSender(conn *frameConn, settings liveSettings, number, queues int) func() error {
	template := newSendTemplate(settings.topic, settings.bodyBytes, 1, false)
	body := template.frame[len(template.frame)-settings.bodyBytes:]
	opaque := uint32(firstOpaque)
	return func() error {
		opaque++
		template.patch(template.frame, opaque, (number+int(opaque))%queues, uint64(number)<<32|uint64(opaque))
		stampNow(body)
		if _, err := conn.Write(template.frame); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(replyTimeout))
		header, _, err := conn.awaitRocket()
		if err != nil {
			return err
		}
		return checkSuccess(header)
	}
}

// livePuller is one member of the group.
type livePuller struct {
	*rocketPuller
	arrived *arrivals
}

// begin subscribes and asks for every queue that is this member's.
func (p *livePuller) begin(number, members int) error {
	p.conn.SetReadDeadline(time.Now().Add(replyTimeout))
	if err := p.subscribe(); err != nil {
		return err
	}
	p.conn.SetReadDeadline(time.Time{})
	for queue := number; queue < len(p.offsets); queue += members {
		end, err := p.conn.maxOffset(p.topic, queue)
		if err != nil {
			return err
		}
		p.offsets[queue] = end
		p.ask(queue)
	}
	return p.flush()
}

func (p *livePuller) flush() error {
	if len(p.frames) == 0 {
		return nil
	}
	_, err := p.conn.Write(p.frames)
	p.frames = p.frames[:0]
	return err
}

// settleLive takes the answers of one read, and asks again.
func (p *livePuller) settleLive() error {
	for {
		header, body, ok, err := p.conn.nextRocket()
		if err != nil {
			return err
		}
		if !ok {
			return p.flush()
		}
		if isAnswer, err := isRocketAnswer(header); err != nil {
			return err
		} else if !isAnswer {
			continue
		}
		if err := p.takeLive(header, body); err != nil {
			return err
		}
	}
}

func (p *livePuller) takeLive(header, body []byte) error {
	code, err := headerNumber(header, keyCode)
	if err != nil {
		return err
	}
	opaque, err := headerNumber(header, keyOpaque)
	if err != nil {
		return err
	}
	queue := int(opaque - firstOpaque)
	if queue < 0 || queue >= len(p.offsets) {
		return fmt.Errorf("answer to nothing: %s", header)
	}
	switch code {
	case codeSuccess:
		messages, _, err := walkMessages(body, p.offsets[queue])
		if err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
		p.offsets[queue] += messages
		p.arrived.note(bodiesOf(body))
	case codePullNotFound: // it has waited for as long as it may
	default:
		return fmt.Errorf("answer %s", header)
	}
	p.ask(queue)
	return nil
}

// bodiesOf returns the bodies of messages that walkMessages has checked.
func bodiesOf(data []byte) [][]byte {
	var bodies [][]byte
	for len(data) > 0 {
		length := binary.BigEndian.Uint32(data[recordBodyLengthAt:])
		bodies = append(bodies, data[recordBodyAt:recordBodyAt+length])
		data = data[binary.BigEndian.Uint32(data):]
	}
	return bodies
}
