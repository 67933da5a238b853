package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"
)

// startRocketNull serves until the test ends and returns the address.
func startRocketNull(t *testing.T, backlog int64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go newRocketNullServer(100, backlog).serve(listener)
	return listener.Addr().String()
}

// answerRocket serves one connection with one answer to each request, made from its opaque.
func answerRocket(t *testing.T, answer func(code, opaque int64) []byte) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		client := &frameConn{Conn: conn, buf: make([]byte, readBufferBytes)}
		for {
			header, _, ok, _ := client.nextRocket()
			if !ok {
				if client.fill() != nil {
					return
				}
				continue
			}
			code, _ := headerNumber(header, keyCode)
			opaque, _ := headerNumber(header, keyOpaque)
			conn.Write(answer(code, opaque))
		}
	}()
	return listener.Addr().String()
}

func sendOne(address string) error {
	_, err := rocketSend(rocketSendSettings{address: address, topic: "t", queues: 1, connections: 1, bodyBytes: 1, batch: 1, depth: 2, duration: time.Minute, count: 4})
	return err
}

func TestRocketSendSendsTheCountAskedForAndGetsEveryOffset(t *testing.T) {
	for _, c := range []struct {
		batch, depth int
		keys         bool
	}{{1, 1, false}, {1, 500, true}, {32, 1, false}, {32, 7, true}} {
		settings := rocketSendSettings{address: startRocketNull(t, 5), topic: "t", queues: 4, connections: 3, bodyBytes: 10, batch: c.batch, depth: c.depth, keys: c.keys, duration: time.Minute, count: 9600}
		result, err := rocketSend(settings)
		if err != nil {
			t.Fatal(err)
		}
		if result.Messages != 9600 || result.LatencyUS == nil {
			t.Errorf("%+v: %+v", c, result)
		}
	}
}

func TestSpinningSendsGetTheSameAnswers(t *testing.T) {
	settings := rocketSendSettings{address: startRocketNull(t, 0), topic: "t", queues: 2, connections: 1, bodyBytes: 10, batch: 1, depth: 4, spin: true, duration: time.Minute, count: 500}
	result, err := rocketSend(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages != 500 {
		t.Errorf("%+v", result)
	}
}

func TestRocketPullReadsABacklogToItsEnd(t *testing.T) {
	settings := rocketPullSettings{address: startRocketNull(t, 1001), topic: "t", queues: 4, connections: 2, most: 32, duration: time.Minute}
	result, err := rocketPull(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages != 8008 || !result.ToTheEnd || result.Pulls != 8*32 {
		t.Errorf("%+v", result)
	}
}

func TestRocketPullStopsWhenItsTimeIsOver(t *testing.T) {
	settings := rocketPullSettings{address: startRocketNull(t, 1<<40), topic: "t", queues: 2, connections: 1, most: 32, duration: 50 * time.Millisecond}
	result, err := rocketPull(settings)
	if err != nil {
		t.Fatal(err)
	}
	if result.Messages == 0 || result.ToTheEnd {
		t.Errorf("%+v", result)
	}
}

func TestRocketSendFailsOnWrongAnswers(t *testing.T) {
	success := func(opaque int64, offset string) []byte {
		return appendRocketFrame(nil, codeSuccess, uint32(opaque), 1, []extField{{"offset", "0"}, {"queueId", "0"}, {"queueOffset", offset}}, nil)
	}
	for _, c := range []struct {
		name   string
		want   string
		answer func(opaque int64) []byte
	}{
		{"a refusal", `"code":2`, func(opaque int64) []byte { return appendRocketFrame(nil, 2, uint32(opaque), 1, nil, nil) }},
		{"one offset twice", "given twice", func(opaque int64) []byte { return success(opaque, "7") }},
		{"another opaque", "answer to nothing", func(opaque int64) []byte { return success(opaque+1000, "0") }},
		{"an offset left out", "left out", func(opaque int64) []byte { return success(opaque, "1"+string(rune('0'+opaque%10))) }},
		{"a request", "the server asks", func(opaque int64) []byte { return appendRocketFrame(nil, 39, uint32(opaque), 0, nil, nil) }},
		{"no JSON", "header of", func(int64) []byte { return []byte("\x00\x00\x00\x08\x01\x00\x00\x04xxxx") }},
	} {
		address := answerRocket(t, func(code, opaque int64) []byte {
			if code == codeSendMessageV2 {
				return c.answer(opaque)
			}
			return success(opaque, "0")
		})
		if err := sendOne(address); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestNotificationsAreNoAnswers(t *testing.T) {
	notification := appendRocketFrame(nil, 40, 1, 2, []extField{{"consumerGroup", "g"}}, nil)
	var sent int64
	address := answerRocket(t, func(code, opaque int64) []byte {
		offset := []extField{{"offset", string(rune('0' + sent))}, {"queueId", "0"}, {"queueOffset", string(rune('0' + sent))}}
		if code == codeSendMessageV2 {
			sent++
		}
		return appendRocketFrame(bytes.Clone(notification), codeSuccess, uint32(opaque), 1, offset, nil)
	})
	if err := sendOne(address); err != nil {
		t.Error(err)
	}
}

// The vector was answered by a real broker; only language, version and the key's order differ from a Java client's.
func TestSendFrameMatchesTheProtocolVector(t *testing.T) {
	fields := sendFields("T1", "KEYS\x01K1\x02TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x010A0000051B5900000000000000010000\x02", false)
	fields[0].value, fields[4].value = "P1", "2"
	frame := string(rocketFrame(codeSendMessageV2, 2, fields, []byte("hello")))
	want := `{"code":310,"extFields":{"a":"P1","b":"T1","c":"TBW102","d":"4","e":"2","f":"0","g":"1700000000000","h":"0",` +
		`"i":"KEYS\u0001K1\u0002TAGS\u0001TagA\u0002WAIT\u0001true\u0002UNIQ_KEY\u00010A0000051B5900000000000000010000\u0002",` +
		`"j":"0","k":"false","l":"0","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":2,` +
		`"serializeTypeCurrentRPC":"JSON","version":409}hello`
	if frame[rocketHeadBytes:] != want {
		t.Errorf("got  %s\nwant %s", frame[rocketHeadBytes:], want)
	}
	if head := fromHex(t, "00000177 0000016e"); frame[:rocketHeadBytes] != head { // 4 + 366 + 5 and 366
		t.Errorf("head %x, want %x", frame[:rocketHeadBytes], head)
	}
}

func TestBatchBodyMatchesTheProtocolVector(t *testing.T) {
	body := appendBatchRecord(nil, []byte("b0"), "TAGS\x01TagA\x02WAIT\x01true\x02")
	body = appendBatchRecord(body, []byte("b1"), "WAIT\x01true\x02")
	want := fromHex(t, "0000002c 00000000 00000000 00000000 00000002 6230 0014 544147530154616741025741495401747275 6502"+
		"00000022 00000000 00000000 00000000 00000002 6231 000a 57414954017472756502")
	if string(body) != want || countBatch(body) != 2 {
		t.Errorf("got %x, want %x", body, want)
	}
}

func TestTemplatesArePatchedInPlace(t *testing.T) {
	template := newSendTemplate("t", 10, 3, true)
	frame := bytes.Clone(template.frame)
	template.patch(frame, 12345678, 3, 0xFFF)
	header, body, n, err := splitRocket(frame)
	if err != nil || n != len(frame) {
		t.Fatalf("%d bytes of %d, %v", n, len(frame), err)
	}
	for _, part := range []string{`"opaque":12345678,`, `"e":"3"`, `"m":"true"`, `"code":320`} {
		if !bytes.Contains(header, []byte(part)) {
			t.Errorf("no %s in %s", part, header)
		}
	}
	for _, part := range []string{"2A00000FFF\x02", "2A00001000\x02", "2A00001001\x02", "order-0000004095\x02", "order-0000004097\x02"} {
		if bytes.Count(body, []byte(part)) != 1 {
			t.Errorf("%q is not once in %q", part, body)
		}
	}
	if countBatch(body) != 3 {
		t.Errorf("%q", body)
	}
}

func TestFramesAreSplitWhereverTheyAreCut(t *testing.T) {
	frame := rocketFrame(codeMaxOffset, firstOpaque, []extField{{"topic", "t"}}, []byte("body"))
	for cut := range len(frame) {
		if _, _, n, err := splitRocket(frame[:cut]); n != 0 || err != nil {
			t.Errorf("cut at %d: %d, %v", cut, n, err)
		}
	}
	if _, body, n, err := splitRocket(append(frame, 'x')); n != len(frame) || string(body) != "body" || err != nil {
		t.Errorf("%d, %q, %v", n, body, err)
	}
}

func TestMessagesOutOfOrderOrCutAreFound(t *testing.T) {
	record := appendStoredMessage(nil, "t", "WAIT\x01true", []byte("body"))
	if messages, bodyBytes, err := walkMessages(record, 0); messages != 1 || bodyBytes != 4 || err != nil {
		t.Errorf("%d, %d, %v", messages, bodyBytes, err)
	}
	for _, data := range [][]byte{append(bytes.Clone(record), record...), record[:len(record)-1], record[:50]} {
		if _, _, err := walkMessages(data, 0); err == nil {
			t.Errorf("%x is taken", data)
		}
	}
}

func TestRocketHoldHasEveryMessageFollowed(t *testing.T) {
	for _, kind := range []string{holdDelay, holdCommit, holdBack} {
		for _, depth := range []int{1, 16, 1000} {
			settings := rocketHoldSettings{address: startRocketNull(t, 0), topic: "t", queues: 4, kind: kind, bodyBytes: 10, depth: depth, count: 500}
			if err := settings.validate(); err != nil {
				t.Fatal(err)
			}
			result, err := rocketHold(settings)
			if err != nil {
				t.Fatal(kind, depth, err)
			}
			if result.Messages != 500 {
				t.Errorf("%s: %d messages", kind, result.Messages)
			}
		}
	}
}

func TestRocketHoldAsksForWhatItIsTold(t *testing.T) {
	delayed := rocketHoldSettings{topic: "t", kind: holdDelay, bodyBytes: 1}
	half := rocketHoldSettings{topic: "t", kind: holdCommit, bodyBytes: 1}
	for _, c := range []struct {
		frame []byte
		want  string
	}{
		{delayed.newHoldTemplate().frame, `\u0002DELAY\u000118"`},
		{half.newHoldTemplate().frame, `"f":"4"`},
		{half.newHoldTemplate().frame, `\u0002TRAN_MSG\u0001true\u0002PGROUP`},
		{half.follow()(nil, firstOpaque, storedAt{77, 5}), `"commitLogOffset":"77","commitOrRollback":"8"`},
	} {
		if !bytes.Contains(c.frame, []byte(c.want)) {
			t.Errorf("no %s in %s", c.want, c.frame)
		}
	}
}

func TestRocketHoldStopsAtARefusal(t *testing.T) {
	refused := func(code, opaque int64) []byte {
		answer := codeSuccess
		if code == codeSendMessageV2 {
			answer = 14
		}
		return rocketFrame(answer, uint32(opaque), []extField{{"offset", "0"}}, nil)
	}
	address := answerRocket(t, func(code, opaque int64) []byte {
		frame := refused(code, opaque)
		return bytes.Replace(frame, []byte(`"flag":0`), []byte(`"flag":1`), 1)
	})
	settings := rocketHoldSettings{address: address, topic: "t", queues: 1, kind: holdBack, bodyBytes: 1, depth: 4, count: 10}
	if _, err := rocketHold(settings); err == nil || !strings.Contains(err.Error(), `"code":14`) {
		t.Error(err)
	}
}
