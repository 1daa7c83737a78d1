// Package common is what the Go clients' programs share; common.py says what they are asked.
package common

import (
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"
)

const (
	Records   = 300
	Keys      = 200
	Large     = 3_000_000
	FirstTime = int64(1_700_000_000_000)
	Sought    = FirstTime + 50_500
)

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Shape is one record of the scenario `shapes`. A nil slice is null.
type Shape struct {
	Key, Value []byte
	Headers    []Header
}

// Shapes are the records of the scenario of that name.
func Shapes() []Shape {
	all := make([]byte, 256)
	for at := range all {
		all[at] = byte(at)
	}
	return []Shape{
		{[]byte("key"), []byte("value"), []Header{{"name", []byte("1")}, {"name", []byte("2")}}},
		{[]byte{}, []byte{}, nil},
		{nil, []byte("no key"), nil},
		{[]byte("gone"), nil, nil},
		{[]byte("schlüssel"), all, []Header{{"größe", []byte("高")}}},
		{[]byte("last"), []byte("with an empty header"), []Header{{"empty", []byte{}}}},
	}
}

// Value is text that shrinks in any codec.
func Value(number int) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("record %d ", number), number%20+4))
}

// Key is the key of a record in the scenarios of codecs.
func Key(number int) []byte { return fmt.Appendf(nil, "k%d", number) }

// Codecs are the codecs of Kafka.
var Codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Failed is what a scenario ends with.
type Failed struct{ Why string }

// NotThere is what a scenario ends with if the client has no such thing.
type NotThere struct{ Why string }

// Equal ends the scenario as failed unless both are equal.
func Equal[T any](found, expected T, what string) {
	if !reflect.DeepEqual(found, expected) {
		panic(Failed{fmt.Sprintf("%s: found %.150v, expected %.150v", what, fmt.Sprint(found), fmt.Sprint(expected))})
	}
}

// Must ends the scenario as failed if there is an error.
func Must(err error) {
	if err != nil {
		panic(Failed{err.Error()})
	}
}

// Got is Must for a function that returns a value too.
func Got[T any](value T, err error) T {
	Must(err)
	return value
}

// Eventually ends the scenario as failed unless it holds within ten seconds: Kafka grows and deletes topics by and by.
func Eventually(holds func() bool, what string) {
	for left := 100; !holds(); left-- {
		if left == 0 {
			panic(Failed{"never: " + what})
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Scenario is one named scenario.
type Scenario struct {
	Name string
	Run  func()
}

// Say prints a line.
func Say(format string, arguments ...any) { fmt.Printf(format+"\n", arguments...) }

// Run runs scenarios and prints how each ends.
func Run(scenarios []Scenario) {
	for _, scenario := range scenarios {
		func() {
			defer func() {
				switch ended := recover().(type) {
				case nil:
					Say("ok %s", scenario.Name)
				case NotThere:
					Say("none %s: %s", scenario.Name, ended.Why)
				case Failed:
					Say("FAILED %s: %s", scenario.Name, strings.Join(strings.Fields(ended.Why), " "))
				default:
					panic(ended)
				}
			}()
			scenario.Run()
		}()
	}
}

// Terminated is closed when the process is told to end.
func Terminated() <-chan os.Signal {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	return ended
}
