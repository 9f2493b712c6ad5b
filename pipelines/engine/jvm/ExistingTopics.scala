// in Kafka's package: what a producer asks about topics can be changed only there
package org.apache.kafka.clients.producer

import java.util.{Map => JavaMap}

import org.apache.kafka.clients.ClientUtils
import org.apache.kafka.clients.producer.internals.ProducerMetadata
import org.apache.kafka.common.internals.ClusterResourceListeners
import org.apache.kafka.common.requests.MetadataRequest
import org.apache.kafka.common.serialization.ByteArraySerializer
import org.apache.kafka.common.utils.{LogContext, Time}

/**
 * Producers for topics that exist. Kafka's own let the broker create each topic that they ask about, and no property changes
 * that. So what was deleted, or retired, would come back.
 */
object ExistingTopics {
  def producer(properties: JavaMap[String, Object]): KafkaProducer[Array[Byte], Array[Byte]] = {
    val bytes = new ByteArraySerializer
    val config = new ProducerConfig(ProducerConfig.appendSerializerToConfig(properties, bytes, bytes))
    val metadata = new Asking(config)
    metadata.bootstrap(ClientUtils.parseAndValidateAddresses(config))
    new KafkaProducer(config, bytes, bytes, metadata, null, null, Time.SYSTEM)
  }

  private final class Asking(config: ProducerConfig)
    extends ProducerMetadata(
      config.getLong(ProducerConfig.RETRY_BACKOFF_MS_CONFIG),
      config.getLong(ProducerConfig.RETRY_BACKOFF_MAX_MS_CONFIG),
      config.getLong(ProducerConfig.METADATA_MAX_AGE_CONFIG),
      config.getLong(ProducerConfig.METADATA_MAX_IDLE_CONFIG),
      new LogContext,
      new ClusterResourceListeners,
      Time.SYSTEM) {

    override def newMetadataRequestBuilder(): MetadataRequest.Builder = creatingNone(super.newMetadataRequestBuilder())

    override def newMetadataRequestBuilderForNewTopics(): MetadataRequest.Builder =
      creatingNone(super.newMetadataRequestBuilderForNewTopics())

    private def creatingNone(request: MetadataRequest.Builder) = new MetadataRequest.Builder(request.topics, false)
  }
}
